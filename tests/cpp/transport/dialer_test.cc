#include "transport/dialer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Stands in for the rank that is dialed, on a thread of its own.
class Rank {
 public:
  explicit Rank(const std::string& name) : where_(Endpoint::unix_name(name)) {
    Result<FileDescriptor> door = listen_at(where_);
    EXPECT_TRUE(door.is_ok()) << door.status().message();
    if (door.is_ok()) door_ = std::move(door).value();
  }

  const Endpoint& where() const { return where_; }

  FileDescriptor accept() {
    int fd = -1;
    while ((fd = ::accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC)) < 0 && errno == EAGAIN) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return FileDescriptor(fd);
  }
  bool is_dialed_again() const { return ::accept4(door_.get(), nullptr, nullptr, 0) >= 0; }

  // Speaks each time after this delay.
  void shake_hands(const FileDescriptor& fd, const Credentials& credentials, milliseconds delay,
                   Welcome::Verdict verdict = Welcome::kWelcome) {
    std::this_thread::sleep_for(delay);
    Greeting greeting;
    greeting.nonce = random_nonce();
    EXPECT_TRUE(send_message(fd.get(), greeting));
    Introduction introduction;
    EXPECT_TRUE(receive(fd, introduction));
    EXPECT_TRUE(is_proven(credentials.secret, greeting, introduction));
    EXPECT_EQ(introduction.hello.called, digest_of(where_));
    std::this_thread::sleep_for(delay);
    Session session = make_session(credentials.secret, greeting, introduction, Role::kAcceptor);
    const uint32_t said = verdict;
    EXPECT_TRUE(send_message(fd.get(), Welcome{said, session.outgoing.next({bytes_of(said)})}));
    if (verdict != Welcome::kWelcome) return;
    Confirmation confirmation;
    EXPECT_TRUE(receive(fd, confirmation));
    EXPECT_TRUE(session.incoming.is_next(view(confirmation.tag), {}));
  }

  // Answers with these bytes, whatever comes.
  void babble(const FileDescriptor& fd, const std::string& bytes) {
    EXPECT_TRUE(send_bytes(fd.get(), bytes.data(), bytes.size()));
  }

 private:
  template <typename T>
  static bool receive(const FileDescriptor& fd, T& message) {
    return ::recv(fd.get(), &message, sizeof message, MSG_WAITALL) == sizeof message;
  }

  Endpoint where_;
  FileDescriptor door_;
};

class DialerTest : public testing::Test {
 protected:
  // Dials the endpoints on this thread until that ends.
  Result<ProvenConnection> dial(std::vector<Endpoint> endpoints, milliseconds patience) {
    Result<ProvenConnection> outcome = Status::internal("nothing was told");
    Hello hello;
    hello.purpose = Hello::kTcpChannel;
    Dialer dialer(loop_, credentials_, exhaustion_, std::move(endpoints), {}, hello,
                  Clock::now() + patience, [&](Result<ProvenConnection> result) {
                    outcome = std::move(result);
                    loop_.stop();
                  });
    loop_.post([&] { dialer.start(); });
    loop_.run();
    return outcome;
  }

  // Dials two endpoints; the first is served by `answer`, and the second by the rank.
  void expect_rank_is_found_after(const std::function<void(Rank&)>& answer) {
    Rank stranger(name("stranger"));
    Rank rank(name("behind it"));
    std::thread speaks([&] { answer(stranger); });
    std::thread answers([&] { rank.shake_hands(rank.accept(), credentials_, milliseconds(0)); });
    const Result<ProvenConnection> connection = dial({stranger.where(), rank.where()}, seconds(30));
    speaks.join();
    answers.join();
    EXPECT_TRUE(connection.is_ok()) << connection.status().message();
  }

  static std::string name(const char* of) {
    return "perseus-dialer-" + std::to_string(getpid()) + "-" + of;
  }

  EventLoop loop_{std::chrono::microseconds(0)};
  Credentials credentials_{"a secret", {}, 0};
  ResourceExhaustion exhaustion_{seconds(60), [](int) {}};
};

TEST_F(DialerTest, ARankThatIsSlowToWelcomeIsNotDialedAgain) {
  Rank rank(name("slow"));
  std::thread answers([&] {
    const FileDescriptor fd = rank.accept();
    rank.shake_hands(fd, credentials_, milliseconds(1800));
  });
  const Result<ProvenConnection> connection = dial({rank.where()}, seconds(30));
  answers.join();
  EXPECT_TRUE(connection.is_ok()) << connection.status().message();
  EXPECT_FALSE(rank.is_dialed_again());
}

TEST_F(DialerTest, WhoKeepsSilentIsNamedInTheTimeGiven) {
  Rank rank(name("silent"));
  const Result<ProvenConnection> connection = dial({rank.where()}, seconds(1));
  ASSERT_FALSE(connection.is_ok());
  EXPECT_NE(connection.status().message().find("no answer"), std::string::npos)
      << connection.status().message();
}

TEST_F(DialerTest, AfterARefusalTheNextEndpointIsTried) {
  Rank rank(name("second"));
  std::thread answers([&] {
    const FileDescriptor fd = rank.accept();
    rank.shake_hands(fd, credentials_, milliseconds(0));
  });
  const Result<ProvenConnection> connection =
      dial({Endpoint::unix_name(name("nobody")), rank.where()}, seconds(30));
  answers.join();
  EXPECT_TRUE(connection.is_ok()) << connection.status().message();
}

// Words at a wrong address end nothing: the rank may be at the next one.
TEST_F(DialerTest, AStrangerAtOneEndpointDoesNotEndTheLink) {
  const std::string greeting(bytes_of(Greeting{}));
  for (const std::string& bytes :
       {std::string("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), std::string("no"),
        greeting + std::string(sizeof(Welcome), 'w'), greeting}) {
    expect_rank_is_found_after([&](Rank& stranger) { stranger.babble(stranger.accept(), bytes); });
  }
}

TEST_F(DialerTest, AnotherUserOfTheHostIsPassedByAndNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string held = name("held");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    constexpr uid_t kStranger = 65533;
    if (setuid(kStranger) != 0) _exit(1);
    const Rank holder(held);
    if (write(ends[1], "!", 1) == 1) pause();
    _exit(2);
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);  // it listens
  const Status found = dial({Endpoint::unix_name(held)}, milliseconds(200)).status();
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  for (const int end : ends) close(end);
  EXPECT_NE(found.message().find("the name is held by process " + std::to_string(stranger) +
                                 " of user 65533"),
            std::string::npos)
      << found.message();
}

TEST_F(DialerTest, WhoPassesMessagesOnIsPassedBy) {
  // The rank has seen that another address was called.
  expect_rank_is_found_after([&](Rank& relay) {
    relay.shake_hands(relay.accept(), credentials_, milliseconds(0), Welcome::kNotCalledHere);
  });
}

TEST_F(DialerTest, ARankThatHasGivenUpItsLinkIsBelieved) {
  Rank rank(name("gone"));
  std::thread answers(
      [&] { rank.shake_hands(rank.accept(), credentials_, milliseconds(0), Welcome::kNotNow); });
  const Result<ProvenConnection> connection = dial({rank.where()}, seconds(30));
  answers.join();
  EXPECT_EQ(connection.status().code(), StatusCode::kAborted) << connection.status().message();
}

}  // namespace
}  // namespace perseus
