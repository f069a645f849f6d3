#include "base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace perseus {
namespace {

// Returns whether `check` holds in a forked child.
bool holds_in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int open_file() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Opens another file at this number.
void reuse(int fd) {
  const int other = open_file();
  if (other != fd) dup2(other, fd);
}

TEST(FileDescriptorTest, AForkedChildDoesNotHaveIt) {
  const FileDescriptor file(open_file());
  const int fd = file.get();
  EXPECT_TRUE(is_open(fd));
  EXPECT_TRUE(holds_in_child([&] { return !is_open(fd) && file.get() == -1 && !file; }));
  EXPECT_TRUE(is_open(fd));
  EXPECT_EQ(file.get(), fd);
}

TEST(FileDescriptorTest, AForkedChildLeavesAnotherFileAloneThatGotTheNumber) {
  FileDescriptor file(open_file());
  const int fd = file.get();
  EXPECT_TRUE(holds_in_child([&] {
    reuse(fd);
    file.reset();
    return is_open(fd);
  }));
  EXPECT_TRUE(holds_in_child([&] {
    reuse(fd);
    FileDescriptor own(fd);
    FileDescriptor moved(std::move(file));
    moved.reset();
    return is_open(fd) && own.get() == fd;
  })) << "nor if that file belongs to a FileDescriptor, too";
}

TEST(FileDescriptorTest, AGrandchildDoesNotHaveWhatTheChildOpened) {
  EXPECT_TRUE(holds_in_child([] {
    const FileDescriptor file(open_file());
    const int fd = file.get();
    return holds_in_child([&] { return !is_open(fd) && !file; }) && is_open(fd);
  }));
}

TEST(FileDescriptorTest, AForkedChildHasNothingOfAnEventLoopAndCannotRingIt) {
  EventLoop loop;
  const int bell = loop.doorbell_fd();
  EXPECT_TRUE(holds_in_child([&] {
    int ends[2];
    if (is_open(bell) || pipe2(ends, O_NONBLOCK) != 0) return false;
    dup2(ends[1], bell);
    loop.post([] {});
    loop.stop();
    char byte = 0;
    return read(ends[0], &byte, 1) == -1;
  }));
}

}  // namespace
}  // namespace perseus
