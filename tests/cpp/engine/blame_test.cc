#include "engine/blame.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "bootstrap/launcher_sockets.h"

namespace perseus {
namespace {

// Reads the socket that the launcher would read.
struct BlameTest : testing::Test {
  BlameTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    struct stat about{};
    EXPECT_EQ(fstat(ends[1], &about), 0);
    setenv("PERSEUS_NEWS_FD", std::to_string(ends[1]).c_str(), 1);
    setenv("PERSEUS_NEWS_INODE", std::to_string(about.st_ino).c_str(), 1);
    hold_launcher_sockets();
  }
  ~BlameTest() override {
    hand_on_launcher_sockets();
    unsetenv("PERSEUS_NEWS_FD");
    unsetenv("PERSEUS_NEWS_INODE");
    close(ends[0]);
    close(ends[1]);
  }
  std::string heard() {
    char text[256];
    const ssize_t n = read(ends[0], text, sizeof text);
    return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
  }

  int ends[2];
  Topology topology{0, 3, {0, 0, 0}, {"here"}, {4, 5, 6}};  // launched as ranks 4 to 6
  Blame blame{topology, "name"};
};

TEST_F(BlameTest, TheLauncherIsToldOnceInItsOwnNumbers) {
  blame.tell_launcher();
  EXPECT_EQ(heard(), "") << "nobody is to blame yet";
  blame.set_rank(1, false);
  blame.tell_launcher();
  blame.operation_aborted();
  EXPECT_EQ(heard(), "name 5 lost");
}

TEST_F(BlameTest, ARankThatLeftIsToldApartFromOneThatWasLost) {
  blame.set_rank(2, true);
  blame.operation_aborted();
  EXPECT_EQ(heard(), "name 6 left");
}

TEST_F(BlameTest, ThisRankDoesNotAccuseItself) {
  blame.set_rank(0, true);
  blame.tell_launcher();
  EXPECT_EQ(heard(), "");
}

TEST_F(BlameTest, RanksThatAreGivenUpTogetherAreToldInOneLine) {
  blame.set_rank(1, false, {2});
  blame.tell_launcher();
  EXPECT_EQ(heard(), "name 5 6 lost");
}

TEST_F(BlameTest, ARankThatIsGivenUpWithOthersAccusesNone) {
  blame.set_rank(1, false, {0});
  blame.tell_launcher();
  EXPECT_EQ(heard(), "");
}

TEST_F(BlameTest, OperationsThatThisRanksShutdownEndsAccuseNobody) {
  blame.set_rank(1, true);
  blame.begin_shutdown();
  blame.operation_aborted();
  EXPECT_EQ(heard(), "");
}

TEST_F(BlameTest, AWorldThatHasBegunIsTold) {
  blame.tell_launcher_who_met();
  EXPECT_EQ(heard(), "name met 4 5 6");
}

TEST_F(BlameTest, NobodyIsWaitedForWhoDoesNotRead) {
  for (int i = 0; i < 10000; ++i) blame.tell_launcher_who_met();
  EXPECT_EQ(heard(), "name met 4 5 6");
}

TEST_F(BlameTest, NothingIsWrittenToAnotherFileThatGotTheNumber) {
  int others[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, others), 0);
  ASSERT_EQ(dup2(others[1], ends[1]), ends[1]);
  blame.tell_launcher_who_met();
  char text[256];
  EXPECT_EQ(read(others[0], text, sizeof text), -1);
  close(others[0]);
  close(others[1]);
}

}  // namespace
}  // namespace perseus
