#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace perseus {
namespace {

// Nobody here is this user. Only root can give files away.
constexpr uid_t kStranger = 65533;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string pattern = testing::TempDir() + "output_file_test_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~OutputFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string text(const std::string& name) const {
    std::ifstream file(path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  // Returns why it is not opened; empty if it is.
  static std::string refusal(const std::string& at) {
    const auto began = std::chrono::steady_clock::now();
    const Result<FileDescriptor> opened = open_output_file(at);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(1));
    return opened.is_ok() ? "" : opened.status().message();
  }
  void give_away(const std::string& name) const {
    ASSERT_EQ(lchown(path(name).c_str(), kStranger, kStranger), 0);
  }

  std::string folder_;
};

TEST_F(OutputFileTest, IsMadeOrKeepsWhatItHolds) {
  for (const std::string& said : {"one\n", "two\n"}) {
    const Result<FileDescriptor> file = open_output_file(path("file"));
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    lseek(file.value().get(), 0, SEEK_END);
    EXPECT_TRUE(write_all(file.value(), said).is_ok());
  }
  EXPECT_EQ(text("file"), "one\ntwo\n");
}

TEST_F(OutputFileTest, LinksOfThisUserAreFollowed) {
  std::filesystem::create_directory(path("folder"));
  ASSERT_EQ(symlink("folder", path("relative").c_str()), 0);
  ASSERT_EQ(symlink(path("relative/../relative/new").c_str(), path("absolute").c_str()), 0);
  ASSERT_EQ(refusal(path("absolute")), "");
  EXPECT_TRUE(std::filesystem::is_regular_file(path("folder/new")));
  ASSERT_EQ(symlink("loop", path("loop").c_str()), 0);
  EXPECT_EQ(refusal(path("loop")), "Too many levels of symbolic links");
}

TEST_F(OutputFileTest, DevicesAndTheKernelsOwnLinksWillDo) {
  EXPECT_EQ(refusal("/dev/null"), "");
  write("file", "");
  const FileDescriptor file(open(path("file").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(refusal("/dev/fd/" + std::to_string(file.get())), "");
  EXPECT_EQ(refusal("/proc/self/root/dev/null"), "");
}

TEST_F(OutputFileTest, WhatCannotBeOpenedIsAnErrorWithItsReason) {
  EXPECT_EQ(refusal(""), "No such file or directory");
  EXPECT_EQ(refusal(path("no/file")), "No such file or directory");
  EXPECT_EQ(refusal(folder_), "Is a directory");
  EXPECT_EQ(refusal(path("new/")), "No such file or directory");
  write("file", "");
  EXPECT_EQ(refusal(path("file/below")), "Not a directory");
  EXPECT_EQ(refusal(path("file/")), "Not a directory");
}

TEST_F(OutputFileTest, ASecondNameOfAFileIsNotOverwritten) {
  write("precious", "precious");
  ASSERT_EQ(link(path("precious").c_str(), path("file").c_str()), 0);
  EXPECT_NE(refusal(path("file")).find("2 names (hard links)"), std::string::npos);
}

TEST_F(OutputFileTest, APipeHangsNobody) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("pipe")), "it is a pipe that nobody reads");
  const FileDescriptor reader(open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const Result<FileDescriptor> file = open_output_file(path("pipe"));
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_TRUE(write_all(file.value(), "all of it").is_ok());
  const Status full =
      write_all(file.value(), std::string(1 << 20, 'x'), std::chrono::milliseconds(20));
  EXPECT_EQ(full.message(), "nobody reads it");
}

TEST_F(OutputFileTest, AReaderThatHasGoneEndsNoProcess) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  FileDescriptor reader(open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const Result<FileDescriptor> file = open_output_file(path("pipe"));
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  reader.reset();
  const auto before = signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(write_all(file.value(), "text").message(), "Broken pipe");
  signal(SIGPIPE, before);
}

TEST_F(OutputFileTest, WhatBelongsToAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  write("file", "");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0666), 0);
  const FileDescriptor reader(open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  for (const char* name : {"file", "pipe"}) {
    give_away(name);
    EXPECT_EQ(refusal(path(name)),
              "it belongs to user 65533; remove it, or name a file in a folder of your own");
  }
}

TEST_F(OutputFileTest, ALinkOfAnotherUserIsNotFollowed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  std::filesystem::create_directory(path("mine"));
  write("mine/file", "precious");
  ASSERT_EQ(symlink("mine/file", path("file").c_str()), 0);
  ASSERT_EQ(symlink("mine", path("folder").c_str()), 0);
  for (const std::string name : {"file", "folder"}) {
    give_away(name);
    EXPECT_EQ(refusal(path(name == "file" ? "file" : "folder/new")),
              "'" + name +
                  "' is a symbolic link of user 65533; remove it, or name a file in a folder of "
                  "your own");
  }
  EXPECT_EQ(text("mine/file"), "precious");
  EXPECT_FALSE(std::filesystem::exists(path("mine/new")));
}

}  // namespace
}  // namespace perseus
