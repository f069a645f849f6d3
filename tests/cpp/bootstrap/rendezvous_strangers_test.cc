// What others than the job's ranks do at the rendezvous, and what is changed on the way there.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_protocol.h"
#include "bootstrap/rendezvous_server.h"
#include "few_descriptors.h"
#include "rendezvous_job.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Rendezvous, AnotherServiceAtTheAddressIsToldApart) {
  auto listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok());
  RendezvousBootstrap::Options options;
  options.servers = {HostPort{"127.0.0.1", listener.value().local_port()}};
  options.secret = kSecret;
  options.time_out = seconds(1);
  std::thread service([&] {
    int fd = -1;
    while (fd < 0) fd = accept(listener.value().fd(), nullptr, nullptr);
    Socket client(fd);
    const std::string text = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent: 0\r\n\r\n";
    EXPECT_TRUE(client.send_all(text, Socket::Clock::now() + seconds(5)).is_ok());
  });
  auto bootstrap = RendezvousBootstrap::create(options);
  service.join();
  EXPECT_EQ(bootstrap.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(bootstrap.status().message().find("another service"), std::string::npos)
      << bootstrap.status().message();
}

// The first place is taken by nothing, a service that sends first, one that sends nothing, or
// another job's rendezvous.
TEST(Rendezvous, IsFoundAtAnyOfItsPlaces) {
  auto server = serve(1);
  const HostPort taken_here{"127.0.0.1", server->port()};
  const auto expect_found = [&](const HostPort& first) {
    auto options = options_for(*server, 0, 1);
    options.servers = {first, taken_here};
    options.time_out = seconds(30);
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "elsewhere");
  };
  auto gone = serve(1);
  const HostPort nobody{"127.0.0.1", gone->port()};
  gone.reset();
  expect_found(nobody);

  auto listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok());
  const HostPort stranger{"127.0.0.1", listener.value().local_port()};
  expect_found(stranger);  // silent: the kernel accepts, no program answers
  std::thread speaks([&] {
    // The earlier silent connection, and the next.
    for (int i = 0; i < 2; ++i) {
      int fd = -1;
      while (fd < 0) fd = accept(listener.value().fd(), nullptr, nullptr);
      Socket client(fd);
      (void)client.send_all("SSH-2.0-" + std::string(60, 'x'), Socket::Clock::now() + seconds(5));
    }
  });
  expect_found(stranger);
  speaks.join();
}

// Listens at a port of its own and treats each connection in turn as `answer` says, until it ends.
class Stranger {
 public:
  explicit Stranger(std::function<void(Socket&)> answer)
      : listener_(Socket::listen("127.0.0.1", 0).value()), answer_(std::move(answer)) {
    thread_ = std::thread([this] {
      while (!ends_) {
        Socket caller(accept(listener_.fd(), nullptr, nullptr));
        if (caller) {
          answer_(caller);
        } else {
          std::this_thread::sleep_for(milliseconds(1));
        }
      }
    });
  }
  ~Stranger() {
    ends_ = true;
    thread_.join();
  }
  HostPort where() const { return {"127.0.0.1", listener_.local_port()}; }

 private:
  Socket listener_;
  const std::function<void(Socket&)> answer_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

Socket::Clock::time_point soon() { return Socket::Clock::now() + seconds(5); }

void say(Socket& to, const std::string& bytes) { (void)to.send_all(bytes, soon()); }

std::string read_frame(Socket& from) {
  unsigned char head[4] = {};
  (void)from.receive_exactly(reinterpret_cast<char*>(head), sizeof head, soon());
  std::string payload(std::min(head[0] | head[1] << 8, 4096), '\0');
  (void)from.receive_exactly(payload.data(), payload.size(), soon());
  return payload;
}

// It knows no secret, so nothing that it says is believed.
TEST(Rendezvous, AStrangerWhoSaysNoIsPassedBy) {
  auto server = serve(1);
  std::atomic<int> refused = 0;
  Stranger stranger([&](Socket& caller) {
    say(caller, std::string(rendezvous::kMagic) + random_bytes(rendezvous::kChallengeBytes));
    read_frame(caller);
    ++refused;
    const Status no = Status::invalid_argument("a stranger says no");
    say(caller, rendezvous::frame(rendezvous::encode_error(rendezvous::Answer::kRefused, no) +
                                  std::string(sizeof(MessageTag), 't')));
  });
  auto options = options_for(*server, 0, 1);
  options.servers = {stranger.where(), options.servers[0]};
  auto bootstrap = RendezvousBootstrap::create(options);
  ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  expect_gathers(*bootstrap.value(), 1, "elsewhere");
  EXPECT_EQ(refused, 1);
}

// Passes on what a rank and the server say. It knows no secret.
void relay(Socket& caller, const HostPort& to) {
  Socket server = Socket::connect(to, soon()).value();
  char greeting[rendezvous::kGreetingBytes];
  (void)server.receive_exactly(greeting, sizeof greeting, soon());
  say(caller, std::string(greeting, sizeof greeting));
  say(server, rendezvous::frame(read_frame(caller)));
  say(caller, rendezvous::frame(read_frame(server)));
}

TEST(Rendezvous, WhoPassesOnWhatARankSaysIsPassedBy) {
  auto server = serve(1);
  const HostPort there{"127.0.0.1", server->port()};
  Stranger stranger([&](Socket& caller) { relay(caller, there); });
  auto options = options_for(*server, 0, 1);
  options.servers = {stranger.where(), there};
  auto bootstrap = RendezvousBootstrap::create(options);
  ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  expect_gathers(*bootstrap.value(), 1, "elsewhere");

  options.servers = {stranger.where()};
  const Status status = RendezvousBootstrap::create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnreachable);
  const std::string expected =
      "this rank called " + to_string(stranger.where()) + ", but came to " + to_string(there);
  EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
}

// A client that speaks the protocol itself, up to the hello.
struct RawClient {
  explicit RawClient(const RendezvousServer& server, const std::string& secret = kSecret,
                     const std::string& caller = "")
      : socket(Socket::connect({"127.0.0.1", server.port()}, soon()).value()) {
    char greeting[rendezvous::kGreetingBytes];
    EXPECT_TRUE(socket.receive_exactly(greeting, sizeof greeting, soon()).is_ok());
    const std::string challenge(greeting + rendezvous::kMagic.size(), rendezvous::kChallengeBytes);
    rendezvous::Hello hello;
    hello.challenge = random_bytes(rendezvous::kChallengeBytes);
    hello.caller = caller;
    hello.called = socket.peer_name();
    hello.size = 2;
    std::string bytes = encode(hello);
    bytes += rendezvous::client_mac(secret, challenge, bytes);
    say(socket, rendezvous::frame(bytes));
    session.emplace(rendezvous::make_session(secret, challenge, bytes, Role::kInitiator));
    answer = read_frame(socket);
  }

  Socket socket;
  std::optional<Session> session;
  std::string answer;
};

TEST(Rendezvous, AContributionThatWasChangedEndsTheConnection) {
  auto server = serve(2);
  for (const bool is_changed : {false, true}) {
    RawClient client(*server);
    ASSERT_TRUE(rendezvous::open_frame(client.answer, client.session->incoming));
    rendezvous::Contribution contribution{0, 100, "an address card"};
    std::string frame =
        rendezvous::frame(rendezvous::encode(contribution), client.session->outgoing);
    if (is_changed) frame[frame.size() - sizeof(MessageTag) - 1] ^= 1;
    say(client.socket, frame);
    read_frame(client.socket);  // the round fails in both cases
    char byte;
    const auto until = Socket::Clock::now() + std::chrono::milliseconds(200);
    const Status next = client.socket.receive_exactly(&byte, 1, until);
    EXPECT_EQ(next.code(), is_changed ? StatusCode::kAborted : StatusCode::kTimedOut);
  }
}

TEST(Rendezvous, AllRanksAreToldThatSomethingWasChanged) {
  for (const bool is_length : {false, true}) {
    auto server = serve(2);
    RawClient client(*server);
    auto other = RendezvousBootstrap::create(options_for(*server, 1, 2));
    ASSERT_TRUE(other.is_ok());
    std::string frame =
        rendezvous::frame(rendezvous::encode({0, 10'000, "a card"}), client.session->outgoing);
    frame[is_length ? 3 : 6] ^= 1;
    say(client.socket, frame);
    const Status told = other.value()->all_gather("here", seconds(20)).status();
    EXPECT_NE(told.message().find("rank 0 (127.0.0.1:"), std::string::npos) << told.message();
    EXPECT_NE(told.message().find("something in between has changed it"), std::string::npos);
    ASSERT_TRUE(rendezvous::open_frame(client.answer, client.session->incoming));
    std::string answer = read_frame(client.socket);
    ASSERT_TRUE(rendezvous::open_frame(answer, client.session->incoming));
    EXPECT_NE(answer.find("rank 0 did not send what arrived"), std::string::npos) << answer;
  }
}

// The answer of the server may have been held back, and that the rank has hung up.
TEST(Rendezvous, ARankThatCallsOnceMoreTakesItsOwnPlace) {
  auto server = serve(2);
  const std::string caller = random_bytes(rendezvous::kCallerBytes);
  RawClient first(*server, kSecret, caller);
  ASSERT_TRUE(rendezvous::open_frame(first.answer, first.session->incoming));
  RawClient second(*server, kSecret, caller);
  ASSERT_TRUE(rendezvous::open_frame(second.answer, second.session->incoming));
  EXPECT_EQ(second.answer, rendezvous::encode_welcome());
  char byte;
  EXPECT_EQ(first.socket.receive_exactly(&byte, 1, soon()).code(), StatusCode::kAborted);
  RawClient another(*server, kSecret, random_bytes(rendezvous::kCallerBytes));
  ASSERT_TRUE(rendezvous::open_frame(another.answer, another.session->incoming));
  EXPECT_NE(another.answer.find("rank 0 is here already"), std::string::npos) << another.answer;

  auto other = RendezvousBootstrap::create(options_for(*server, 1, 2));
  ASSERT_TRUE(other.is_ok());
  say(second.socket,
      rendezvous::frame(rendezvous::encode({0, 10'000, "a"}), second.session->outgoing));
  const auto all = other.value()->all_gather("b", seconds(20));
  ASSERT_TRUE(all.is_ok()) << all.status().message();
  EXPECT_EQ(all.value(), (std::vector<std::string>{"a", "b"}));
}

TEST(Rendezvous, ARefusedClientIsNotReadAnyFurther) {
  auto server = serve(2);
  RawClient client(*server, "another secret");
  const std::string megabyte(1 << 20, 'x');
  int sent = 0;
  while (sent < 256 && client.socket.send_all(megabyte, soon()).is_ok()) ++sent;
  EXPECT_LT(sent, 64) << "MiB were taken";  // the kernel's buffers hold some
}

TEST(Rendezvous, StrangersAndNoiseDoNotDisturbTheJob) {
  auto server = serve(2);
  const HostPort where{"127.0.0.1", server->port()};
  const auto deadline = Socket::Clock::now() + seconds(20);
  std::vector<Socket> strangers;
  // More than the server keeps, so that the oldest are dropped.
  for (int i = 0; i < 300; ++i) {
    auto socket = Socket::connect(where, deadline);
    ASSERT_TRUE(socket.is_ok()) << socket.status().message();
    if (i % 2 == 0) {
      // Noise; the server may have closed the connection before all of it is sent.
      (void)socket.value().send_all(random_bytes(1 + i * 7), deadline);
    }
    strangers.push_back(std::move(socket).value());
  }
  on_threads(2, [&](int rank) {
    auto bootstrap = RendezvousBootstrap::create(options_for(*server, rank, 2));
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "undisturbed");
  });
}

TEST(Rendezvous, ACallerKeepsTheLastDescriptor) {
  const FewDescriptors few(128);
  auto server = serve(2);
  const FileDescriptor caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto others = FewDescriptors::all_but_one();
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(server->port());
  ASSERT_EQ(connect(caller.get(), reinterpret_cast<sockaddr*>(&where), sizeof where), 0);
  pollfd entry{caller.get(), POLLRDHUP, 0};
  EXPECT_EQ(poll(&entry, 1, 200), 0) << "it was sent away";
}

TEST(Rendezvous, AMessageOfImpossibleLengthEndsTheConnection) {
  auto server = serve(2);
  const auto deadline = Socket::Clock::now() + seconds(5);
  auto socket = Socket::connect(HostPort{"127.0.0.1", server->port()}, deadline);
  ASSERT_TRUE(socket.is_ok());
  char greeting[rendezvous::kGreetingBytes];
  ASSERT_TRUE(socket.value().receive_exactly(greeting, sizeof(greeting), deadline).is_ok());
  ASSERT_TRUE(socket.value().send_all("\xff\xff\xff\xff", deadline).is_ok());
  char byte;
  EXPECT_EQ(socket.value().receive_exactly(&byte, 1, deadline).code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace perseus
