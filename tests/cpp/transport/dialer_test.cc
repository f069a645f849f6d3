#include "transport/dialer.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
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

  // Answers up to the proof, each time after this delay.
  void shake_hands(const FileDescriptor& fd, const Credentials& credentials, milliseconds delay) {
    Hello hello;
    EXPECT_TRUE(receive(fd, hello));
    std::this_thread::sleep_for(delay);
    Challenge challenge;
    challenge.nonce = random_nonce();
    challenge.mac = prove(credentials.secret, Role::kAcceptor, hello, challenge.nonce);
    EXPECT_TRUE(send_message(fd.get(), challenge));
    Proof proof;
    EXPECT_TRUE(receive(fd, proof));
    EXPECT_TRUE(is_proof(proof.mac, credentials.secret, Role::kInitiator, hello, challenge.nonce));
    std::this_thread::sleep_for(delay);
    EXPECT_TRUE(send_message(fd.get(), Welcome{Welcome::kWelcome}));
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
  Result<FileDescriptor> dial(std::vector<Endpoint> endpoints, seconds patience) {
    Result<FileDescriptor> outcome = Status::internal("nothing was told");
    Hello hello;
    hello.purpose = Hello::kTcpChannel;
    Dialer dialer(loop_, credentials_, exhaustion_, std::move(endpoints), {}, hello,
                  Clock::now() + patience, [&](Result<FileDescriptor> result) {
                    outcome = std::move(result);
                    loop_.stop();
                  });
    loop_.post([&] { dialer.start(); });
    loop_.run();
    return outcome;
  }

  static std::string name(const char* of) {
    return "perseus-dialer-" + std::to_string(getpid()) + "-" + of;
  }

  EventLoop loop_{std::chrono::microseconds(0)};
  Credentials credentials_{"a secret", {}, 0};
  ResourceExhaustion exhaustion_{seconds(60), [](int) {}};
};

// The peer may have adopted the connection long before its answer comes.
TEST_F(DialerTest, ARankThatIsSlowToWelcomeIsNotDialedAgain) {
  Rank rank(name("slow"));
  std::thread answers([&] {
    const FileDescriptor fd = rank.accept();
    rank.shake_hands(fd, credentials_, milliseconds(1800));
  });
  const Result<FileDescriptor> connection = dial({rank.where()}, seconds(30));
  answers.join();
  EXPECT_TRUE(connection.is_ok()) << connection.status().message();
  EXPECT_FALSE(rank.is_dialed_again());
}

TEST_F(DialerTest, WhoKeepsSilentIsNamedInTheTimeGiven) {
  Rank rank(name("silent"));
  const Result<FileDescriptor> connection = dial({rank.where()}, seconds(1));
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
  const Result<FileDescriptor> connection =
      dial({Endpoint::unix_name(name("nobody")), rank.where()}, seconds(30));
  answers.join();
  EXPECT_TRUE(connection.is_ok()) << connection.status().message();
}

}  // namespace
}  // namespace perseus
