#include "observe/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace perseus {
namespace {

// Redirects standard error to a file while it exists.
class CapturedStandardError {
 public:
  CapturedStandardError() : file_(std::tmpfile()), saved_(dup(STDERR_FILENO)) {
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~CapturedStandardError() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    std::fclose(file_);
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines(1);
    lseek(fileno(file_), 0, SEEK_SET);
    char c;
    while (read(fileno(file_), &c, 1) == 1) {
      if (c == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += c;
      }
    }
    EXPECT_EQ(lines.back(), "") << "the last line has no end";
    lines.pop_back();
    return lines;
  }

 private:
  std::FILE* file_;
  int saved_;
};

class LogTest : public testing::Test {
 protected:
  ~LogTest() override { configure_log(LogLevel::kWarning, false, -1); }
};

TEST_F(LogTest, ALineHasTimeRankAndLevel) {
  CapturedStandardError captured;
  configure_log(LogLevel::kWarning, false, 3);
  PERSEUS_LOG(kWarning, "rank " << 2 << " is slow");
  ASSERT_EQ(captured.lines().size(), 1u);
  EXPECT_TRUE(std::regex_match(
      captured.lines()[0],
      std::regex(
          R"(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] perseus rank 3 WARNING: rank 2 is slow)")))
      << captured.lines()[0];
}

TEST_F(LogTest, TimeAndRankCanBeLeftOut) {
  CapturedStandardError captured;
  configure_log(LogLevel::kInfo, true, -1);
  PERSEUS_LOG(kError, "no peer");
  EXPECT_EQ(captured.lines(), std::vector<std::string>{"perseus ERROR: no peer"});
}

TEST_F(LogTest, ArgumentsOfALevelThatIsOffAreNotEvaluated) {
  CapturedStandardError captured;
  configure_log(LogLevel::kError, true, 0);
  int evaluated = 0;
  PERSEUS_LOG(kWarning, "value " << ++evaluated);
  PERSEUS_LOG(kError, "value " << ++evaluated);
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(captured.lines(), std::vector<std::string>{"perseus rank 0 ERROR: value 1"});
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  CapturedStandardError captured;
  configure_log(LogLevel::kWarning, true, 1);
  const std::string text(300, 'x');
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) PERSEUS_LOG(kWarning, text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(captured.lines(), std::vector<std::string>(400, "perseus rank 1 WARNING: " + text));
}

}  // namespace
}  // namespace perseus
