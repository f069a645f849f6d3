// Which of the processes that inherit a launcher's variables may be the rank.
#include "bootstrap/rank_holder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace perseus {
namespace {

constexpr const char* kLaunchVariables[] = {"PERSEUS_RANK", "PERSEUS_SIZE", "PERSEUS_RENDEZVOUS",
                                            "PERSEUS_SECRET", kRankHeldBy};

// Launched by perseusrun as rank 1 of 3.
struct RankHolderTest : testing::Test {
  RankHolderTest() {
    setenv("PERSEUS_RANK", "1", 1);
    setenv("PERSEUS_SIZE", "3", 1);
    setenv("PERSEUS_RENDEZVOUS", "10.0.0.7:4711", 1);
    setenv("PERSEUS_SECRET", "000102030405060708090a0b0c0d0e0f", 1);
  }
  ~RankHolderTest() override {
    give_back_rank();
    for (const char* name : kLaunchVariables) unsetenv(name);
  }
};

// Returns whether a child may take the rank once it has run `change`.
bool child_may(const std::function<void()>& change = [] {}) {
  const pid_t child = fork();
  if (child == 0) {
    change();
    _exit(take_rank().is_ok() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST_F(RankHolderTest, AChildMayTakeARankThatItsParentDoesNotHold) {
  EXPECT_TRUE(child_may());
  EXPECT_TRUE(child_may()) << "one after the other";
}

TEST_F(RankHolderTest, AChildMustNotTakeItsParentsRank) {
  ASSERT_TRUE(take_rank().is_ok());
  EXPECT_TRUE(take_rank().is_ok()) << "again, in the same process";
  EXPECT_FALSE(child_may());
  EXPECT_FALSE(child_may([] {
    if (fork() != 0) {
      int status = 0;
      wait(&status);
      _exit(WEXITSTATUS(status));
    }
  })) << "nor a grandchild";
  EXPECT_FALSE(child_may([] { unsetenv(kRankHeldBy); }));
  const std::string here = std::to_string(getpid());
  EXPECT_TRUE(child_may([&] {
    const std::string why = take_rank().message();
    _exit(why.find("process " + here + ", which is rank 1") != std::string::npos ? 0 : 1);
  })) << "the error names the parent";
}

TEST_F(RankHolderTest, AChildCannotGiveBackItsParentsRank) {
  ASSERT_TRUE(take_rank().is_ok());
  EXPECT_FALSE(child_may([] { give_back_rank(); }));
}

TEST_F(RankHolderTest, AChildMayTakeARankThatItsParentHasGivenBack) {
  ASSERT_TRUE(take_rank().is_ok());
  give_back_rank();
  EXPECT_TRUE(child_may());
}

// Such as the process of a pool.
TEST_F(RankHolderTest, AChildThatWasForkedBeforeMustNotTakeTheRankEither) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const auto meet = [](int in, int out) {
    char byte = 0;
    return ::write(out, &byte, 1) == 1 && ::read(in, &byte, 1) == 1;
  };
  const pid_t child = fork();
  if (child == 0) {
    meet(to_child[0], to_parent[1]);  // now the parent has the rank
    const bool is_refused = take_rank().message().find("beside process") != std::string::npos;
    meet(to_child[0], to_parent[1]);
    meet(to_child[0], to_parent[1]);  // now it has given it back
    _exit(is_refused && take_rank().is_ok() ? 0 : 1);
  }
  ASSERT_TRUE(take_rank().is_ok());
  ASSERT_TRUE(meet(to_parent[0], to_child[1]));
  ASSERT_TRUE(meet(to_parent[0], to_child[1]));
  give_back_rank();
  ASSERT_TRUE(meet(to_parent[0], to_child[1]));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Locks what its parent has locked, as soon as that gives it up, and says so.
void grab_lock(int ready, int done) {
  for (int fd = 3; fd < 1024; ++fd) {
    struct flock held{};
    held.l_type = F_WRLCK;
    if (fcntl(fd, F_GETLK, &held) != 0 || held.l_type == F_UNLCK) continue;
    held.l_type = F_WRLCK;
    held.l_len = 1;
    if (::write(ready, "x", 1) == 1 && fcntl(fd, F_SETLKW, &held) == 0) {
      [[maybe_unused]] const ssize_t n = ::write(done, "x", 1);
    }
    pause();
  }
}

TEST_F(RankHolderTest, AChildThatTakesTheRankDoesNotKeepItsFirstHolderFromComingBack) {
  ASSERT_TRUE(take_rank().is_ok());
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  if (child == 0) {
    grab_lock(ready[1], done[1]);
    _exit(1);
  }
  close(ready[1]);
  close(done[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(take_rank().is_ok()) << "it is still held here";
  give_back_rank();
  ASSERT_EQ(::read(done[0], &byte, 1), 1);
  EXPECT_TRUE(take_rank().is_ok());
  EXPECT_FALSE(child_may([] { unsetenv(kRankHeldBy); })) << "another child";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(RankHolderTest, AProgramMayCloseDescriptorsThatItDoesNotKnow) {
  EXPECT_TRUE(child_may([] {
    for (int fd = 3; fd < 1024; ++fd) close(fd);
    if (!take_rank().is_ok()) _exit(3);
    give_back_rank();
  }));
}

TEST_F(RankHolderTest, ARankWhoseProcessHasEndedMayBeTakenAgain) {
  EXPECT_TRUE(child_may([] {
    if (!take_rank().is_ok()) _exit(3);
  }));
  EXPECT_TRUE(child_may());
  EXPECT_TRUE(take_rank().is_ok());
}

TEST_F(RankHolderTest, AChildMayBeARankOfAnotherJobOrWorkAlone) {
  ASSERT_TRUE(take_rank().is_ok());
  EXPECT_TRUE(child_may([] { setenv("PERSEUS_RENDEZVOUS", "10.0.0.7:4712", 1); }));
  EXPECT_TRUE(child_may([] { setenv("PERSEUS_RANK", "2", 1); }));
  EXPECT_TRUE(child_may([] {
    setenv("PERSEUS_RANK", "0", 1);
    setenv("PERSEUS_SIZE", "1", 1);
  }));
}

TEST_F(RankHolderTest, AProcessThatIsNotLaunchedWithOthersHoldsNothing) {
  for (const char* name : kLaunchVariables) unsetenv(name);
  ASSERT_TRUE(take_rank().is_ok());
  EXPECT_EQ(std::getenv(kRankHeldBy), nullptr);
}

TEST_F(RankHolderTest, JunkInTheVariableHoldsNothing) {
  for (const char* junk : {"", "x", "17", "17 ", "-1 PERSEUS_RANK=1/3@10.0.0.7:47",
                           "99999999999999 PERSEUS_RANK=1/3@10.0.0.7:4711"}) {
    setenv(kRankHeldBy, junk, 1);
    EXPECT_TRUE(take_rank().is_ok()) << junk;
  }
}

}  // namespace
}  // namespace perseus
