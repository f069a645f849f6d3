#include "bootstrap/local_meeting.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/secret.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A name that no other test uses, in this run or one beside it.
std::string fresh_name() { return to_hex(random_bytes(16)); }

Socket::Clock::time_point in(milliseconds time) { return Socket::Clock::now() + time; }

// Runs `body` in a child process and returns its exit code.
template <typename Body>
int exit_code_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A place that is taken, and told about.
LocalMeeting tell(const std::string& name, uint16_t port = 4711) {
  auto place = LocalMeetingPlace::take(name);
  EXPECT_TRUE(place.is_ok()) << place.status().message();
  const LocalMeeting meeting{random_bytes(kSecretBytes), port};
  EXPECT_TRUE(std::move(place).value().tell(meeting).is_ok());
  return meeting;
}

TEST(LocalMeeting, IsWhatRankZeroTellsEveryoneWhoAsks) {
  const std::string name = fresh_name();
  const LocalMeeting told = tell(name);
  for (int rank = 1; rank < 4; ++rank) {
    auto found = find_local_meeting(name, in(seconds(10)));
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    EXPECT_EQ(found.value().secret, told.secret);
    EXPECT_EQ(found.value().port, told.port);
  }
}

TEST(LocalMeeting, MayBeAskedForBeforeItIsTold) {
  const std::string name = fresh_name();
  auto found = Result<LocalMeeting>(LocalMeeting());
  std::thread early([&] { found = find_local_meeting(name, in(seconds(10))); });
  const LocalMeeting told = tell(name);
  early.join();
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value().secret, told.secret);
}

TEST(LocalMeeting, NobodyThereIsAnErrorInTime) {
  const auto result = find_local_meeting(fresh_name(), in(milliseconds(50)));
  EXPECT_EQ(result.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(result.status().message().find("rank 0"), std::string::npos);
}

TEST(LocalMeeting, ANameThatAProcessOfThisUserHasIsAnError) {
  const std::string name = fresh_name();
  tell(name);
  const Status taken = LocalMeetingPlace::take(name).status();
  EXPECT_EQ(taken.code(), StatusCode::kUnreachable);
  EXPECT_NE(taken.message().find("held by process " + std::to_string(getpid())), std::string::npos)
      << taken.message();
}

TEST(LocalMeeting, TheErrorOfRankZeroIsThatOfTheOthers) {
  const std::string name = fresh_name();
  auto place = LocalMeetingPlace::take(name);
  ASSERT_TRUE(place.is_ok());
  auto found = Result<LocalMeeting>(LocalMeeting());
  std::thread other([&] { found = find_local_meeting(name, in(seconds(30))); });
  const auto began = Socket::Clock::now();
  std::move(place).value().decline(Status::unreachable("no port is free"), 1);
  other.join();
  EXPECT_LT(Socket::Clock::now() - began, seconds(10));
  EXPECT_EQ(found.status().code(), StatusCode::kUnreachable);
  EXPECT_EQ(found.status().message(), "on rank 0: no port is free");
}

constexpr uid_t kStranger = 65533;

TEST(LocalMeeting, IsNotToldToAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  tell(name);
  // A caller that does not check which user answers.
  EXPECT_EQ(exit_code_of_child([&] {
              if (setuid(kStranger) != 0) return 1;
              sockaddr_un address{};
              address.sun_family = AF_UNIX;
              const std::string path = '\0' + ("perseus-" + name);
              std::memcpy(address.sun_path, path.data(), path.size());
              const Socket socket(::socket(AF_UNIX, SOCK_STREAM, 0));
              const socklen_t size = offsetof(sockaddr_un, sun_path) + path.size();
              if (connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 3;
              char byte = 0;
              return recv(socket.fd(), &byte, 1, 0) == 0 ? 0 : 4;
            }),
            0);
}

// Holds a name as another user until the test is over.
class Squatter {
 public:
  explicit Squatter(const std::string& name, uid_t user = kStranger) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    process_ = fork();
    if (process_ == 0) {
      if (setuid(user) != 0) _exit(1);
      const auto place = LocalMeetingPlace::take(name);
      if (place.is_ok() && ::write(ready[1], "!", 1) == 1) ::pause();
      _exit(1);
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~Squatter() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = 0;
};

TEST(LocalMeeting, IsAtAFreshNameIfAnotherUserHasTheKnownOne) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  const Squatter squatter(name);
  // Neither has a folder of its own, as services have none.
  unsetenv("XDG_RUNTIME_DIR");
  unsetenv("HOME");
  const LocalMeeting told = tell(name);
  auto found = find_local_meeting(name, in(seconds(10)));
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value().secret, told.secret);
  const Status again = LocalMeetingPlace::take(name).status();
  EXPECT_NE(again.message().find("held by process " + std::to_string(getpid())), std::string::npos)
      << again.message();
}

TEST(LocalMeeting, IsFoundThoughTheOtherUserHasGivenTheNameBack) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  auto squatter = std::make_unique<Squatter>(name);
  const LocalMeeting told = tell(name);
  squatter.reset();
  auto found = find_local_meeting(name, in(seconds(10)));
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value().secret, told.secret);
}

// Anybody may make names that look like rank 0's.
TEST(LocalMeeting, IsFoundAmongManyThatOthersHaveMade) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  std::vector<std::unique_ptr<Squatter>> squatters;
  for (uid_t user = 65000; user < 65020; ++user) {
    squatters.push_back(std::make_unique<Squatter>(name, user));
  }
  const LocalMeeting told = tell(name);
  auto found = find_local_meeting(name, in(seconds(10)));
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_EQ(found.value().secret, told.secret);
}

TEST(LocalMeeting, ThatNeverComesIsAnErrorThatNamesWhoHasTheName) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  const Squatter squatter(name);
  const Status found = find_local_meeting(name, in(milliseconds(100))).status();
  EXPECT_NE(found.message().find("of user 65533"), std::string::npos) << found.message();
}

}  // namespace
}  // namespace perseus
