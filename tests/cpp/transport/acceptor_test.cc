#include "transport/acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "few_descriptors.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;

class AcceptorTest : public testing::Test, private AcceptorOwner {
 protected:
  AcceptorTest() {
    EXPECT_TRUE(acceptor_.listen(where_).is_ok());
    acceptor_.start();
  }

  FileDescriptor call() {
    FileDescriptor fd = open_socket();
    call(fd);
    return fd;
  }
  static FileDescriptor open_socket() {
    return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  void call(const FileDescriptor& fd) {
    EXPECT_EQ(connect(fd.get(), where_.get(), where_.length), 0);
  }

  // Reads what the acceptor has sent, and returns whether it has closed the connection.
  static bool is_closed(const FileDescriptor& fd) {
    Greeting greeting;
    ssize_t count;
    do count = recv(fd.get(), &greeting, sizeof greeting, MSG_DONTWAIT);
    while (count > 0);
    return count == 0;
  }

  // Lets the acceptor read and answer what has come, for this long.
  void run(milliseconds time = milliseconds(0)) {
    const Clock::time_point end = Clock::now() + time;
    while (loop_.run_once(milliseconds(1)) || Clock::now() < end) {
    }
  }

  template <typename Message>
  Message receive(const FileDescriptor& fd) {
    Message message;
    EXPECT_EQ(recv(fd.get(), &message, sizeof message, MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof message));
    return message;
  }

  // Connects as a rank of the job up to the welcome.
  std::pair<FileDescriptor, Session> be_welcomed(uint16_t channel = 0) {
    FileDescriptor fd = call();
    run();
    const auto greeting = receive<Greeting>(fd);
    Hello hello;
    hello.called = digest_of(where_);
    hello.from = 1;
    hello.index = channel;
    const Introduction introduction{hello, prove(credentials_.secret, greeting, hello)};
    EXPECT_TRUE(send_message(fd.get(), introduction));
    run();
    Session session = make_session(credentials_.secret, greeting, introduction, Role::kInitiator);
    const auto welcome = receive<Welcome>(fd);
    EXPECT_TRUE(session.incoming.is_next(view(welcome.tag), {bytes_of(welcome.verdict)}));
    EXPECT_EQ(welcome.verdict, Welcome::kWelcome);
    return {std::move(fd), std::move(session)};
  }

  std::optional<uint32_t> connected_;
  int lasting_error_ = 0;  // of an exhaustion that has lasted

 private:
  bool may_connect(const Hello&) override { return true; }
  void on_connected(const Hello& hello, ProvenConnection) override { connected_ = hello.from; }

  const FewDescriptors few_{128};  // so that the acceptor keeps 16 connections only
  EventLoop loop_{std::chrono::microseconds(0)};
  const Credentials credentials_{"a secret", {}, 0};
  ResourceExhaustion exhaustion_{milliseconds(200), [this](int error) { lasting_error_ = error; }};
  Endpoint where_ = Endpoint::unix_name("perseus-acceptor-" + std::to_string(getpid()));
  Acceptor acceptor_{loop_, credentials_, exhaustion_, *this};
};

TEST_F(AcceptorTest, ARankThatIsSlowToConfirmIsNotDroppedForStrangers) {
  auto [fd, session] = be_welcomed();
  run(milliseconds(150));  // by when strangers give way to others
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(call());
  run(milliseconds(150));
  EXPECT_TRUE(send_message(fd.get(), Confirmation{session.outgoing.next({})}));
  run();
  EXPECT_EQ(connected_, 1u);
}

// Somebody in between may make a rank call again and again, and keep its calls open.
TEST_F(AcceptorTest, ACallTakesThePlaceOfTheRanksCallBefore) {
  auto [other, others_session] = be_welcomed(7);
  auto [first, first_session] = be_welcomed();
  auto [second, second_session] = be_welcomed();
  char byte;
  EXPECT_EQ(recv(first.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_TRUE(send_message(second.get(), Confirmation{second_session.outgoing.next({})}));
  run();
  EXPECT_EQ(std::exchange(connected_, std::nullopt), 1u);
  EXPECT_TRUE(send_message(other.get(), Confirmation{others_session.outgoing.next({})}));
  run();
  EXPECT_EQ(connected_, 1u);
}

TEST_F(AcceptorTest, AnotherUserOfTheHostIsNotEvenGreeted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    constexpr uid_t kStranger = 65533;
    if (setuid(kStranger) != 0) _exit(1);
    const FileDescriptor fd = call();
    if (write(ends[1], "!", 1) != 1) _exit(2);
    char byte = 0;
    _exit(recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 3);
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);  // it has called
  run();
  int status = 0;
  waitpid(stranger, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int end : ends) close(end);
}

TEST_F(AcceptorTest, ACallerKeepsTheLastDescriptorUntilAnotherCalls) {
  const auto known = be_welcomed();  // a sanitizer opens a pipe when it first sees a handler
  const FileDescriptor first = call();
  const FileDescriptor second = open_socket();
  const auto others = FewDescriptors::all_but_one();
  run(milliseconds(20));
  EXPECT_FALSE(is_closed(first));
  call(second);
  run(milliseconds(20));
  EXPECT_TRUE(is_closed(first));
  EXPECT_FALSE(is_closed(second));
}

TEST_F(AcceptorTest, ExhaustionLastsThoughCallersTakeEachOthersDescriptor) {
  const auto known = be_welcomed();  // as above
  FileDescriptor first = call();
  FileDescriptor second = call();
  const auto others = FewDescriptors::all_but_one();
  const Clock::time_point end = Clock::now() + milliseconds(400);
  while (Clock::now() < end) {
    run(milliseconds(20));
    for (FileDescriptor* fd : {&first, &second}) {
      if (!is_closed(*fd)) continue;
      fd->reset();  // for the other's sake, so it calls again
      *fd = call();
    }
  }
  EXPECT_EQ(lasting_error_, EMFILE);
}

TEST_F(AcceptorTest, ARankMayStandStillBeforeItConfirms) {
  auto [fd, session] = be_welcomed();
  run(milliseconds(5500));  // others must have proved themselves by then
  EXPECT_TRUE(send_message(fd.get(), Confirmation{session.outgoing.next({})}));
  run();
  EXPECT_EQ(connected_, 1u);
}

}  // namespace
}  // namespace perseus
