#include "engine/blame.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace perseus {
namespace {

// Reads the socket that the launcher would read.
struct BlameTest : testing::Test {
  BlameTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    setenv("PERSEUS_NEWS_FD", std::to_string(ends[1]).c_str(), 1);
  }
  ~BlameTest() override {
    unsetenv("PERSEUS_NEWS_FD");
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
  Blame blame{topology};
};

TEST_F(BlameTest, TheLauncherIsToldOnceInItsOwnNumbers) {
  blame.tell_launcher();
  EXPECT_EQ(heard(), "") << "nobody is to blame yet";
  blame.set_rank(1, false);
  blame.tell_launcher();
  blame.operation_aborted();
  EXPECT_EQ(heard(), "5 lost");
}

TEST_F(BlameTest, ARankThatLeftIsToldApartFromOneThatWasLost) {
  blame.set_rank(2, true);
  blame.operation_aborted();
  EXPECT_EQ(heard(), "6 left");
}

TEST_F(BlameTest, ThisRankDoesNotAccuseItself) {
  blame.set_rank(0, true);
  blame.tell_launcher();
  EXPECT_EQ(heard(), "");
}

TEST_F(BlameTest, RanksThatAreGivenUpTogetherAreToldInOneLine) {
  blame.set_rank(1, false, {2});
  blame.tell_launcher();
  EXPECT_EQ(heard(), "5 6 lost");
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
  tell_launcher_who_met(topology);
  EXPECT_EQ(heard(), "met 4 5 6");
}

TEST_F(BlameTest, NobodyIsWaitedForWhoDoesNotRead) {
  for (int i = 0; i < 10000; ++i) tell_launcher_who_met(topology);
  EXPECT_EQ(heard(), "met 4 5 6");
}

}  // namespace
}  // namespace perseus
