#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_protocol.h"
#include "bootstrap/rendezvous_server.h"
#include "few_descriptors.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kSecret = "a secret of the job";

std::unique_ptr<RendezvousServer> serve(int size, const std::string& address = "127.0.0.1") {
  auto server = RendezvousServer::start(address, 0, size, kSecret);
  EXPECT_TRUE(server.is_ok()) << server.status().message();
  return std::move(server).value();
}

RendezvousBootstrap::Options options_for(const RendezvousServer& server, int rank, int size) {
  RendezvousBootstrap::Options options;
  options.servers = {HostPort{"127.0.0.1", server.port()}};
  options.secret = kSecret;
  options.rank = rank;
  options.size = size;
  options.time_out = seconds(10);
  return options;
}

void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

void expect_gathers(Bootstrap& bootstrap, int rounds, const std::string& prefix) {
  for (int round = 0; round < rounds; ++round) {
    const auto text = [&](int rank) {
      return prefix + std::to_string(round) + "/" + std::string(rank * 1000, 'x');
    };
    auto all = bootstrap.all_gather(text(bootstrap.rank()), seconds(10));
    ASSERT_TRUE(all.is_ok()) << all.status().message();
    ASSERT_EQ(all.value().size(), static_cast<size_t>(bootstrap.size()));
    for (int r = 0; r < bootstrap.size(); ++r) EXPECT_EQ(all.value()[r], text(r));
  }
}

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rendezvous, Sizes, testing::Range(1, 9));

TEST_P(Sizes, EveryRankGetsEverybodysBytesInRankOrder) {
  const int size = GetParam();
  auto server = serve(size);
  on_threads(size, [&](int rank) {
    auto bootstrap = RendezvousBootstrap::create(options_for(*server, rank, size));
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 3, "round");
  });
}

TEST(Rendezvous, ServesOneGenerationAfterTheOther) {
  auto server = serve(3);
  on_threads(3, [&](int rank) {
    for (int generation = 0; generation < 5; ++generation) {
      auto options = options_for(*server, rank, 3);
      options.generation = generation;
      auto bootstrap = RendezvousBootstrap::create(options);
      ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
      expect_gathers(*bootstrap.value(), 2, "generation " + std::to_string(generation));
    }
  });
}

TEST(Rendezvous, ServesSeveralWorldsAtOnce) {
  auto server = serve(5);
  on_threads(5, [&](int launched) {
    auto options = options_for(*server, launched / 2, 0);
    options.ranks = launched % 2 == 0 ? std::vector<int>{0, 2, 4} : std::vector<int>{1, 3};
    options.size = static_cast<int>(options.ranks.size());
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 2, launched % 2 == 0 ? "even" : "odd");
  });
}

TEST(Rendezvous, CarriesContributionsUpToTheBoundAndRefusesMore) {
  auto server = serve(2);
  on_threads(2, [&](int rank) {
    auto bootstrap = RendezvousBootstrap::create(options_for(*server, rank, 2));
    ASSERT_TRUE(bootstrap.is_ok());
    const std::string most(rendezvous::kMaxContributionBytes, static_cast<char>('a' + rank));
    auto too_much = bootstrap.value()->all_gather(most + "x", seconds(10));
    EXPECT_EQ(too_much.status().code(), StatusCode::kInvalidArgument);
    auto all = bootstrap.value()->all_gather(most, seconds(10));
    ASSERT_TRUE(all.is_ok()) << all.status().message();
    EXPECT_EQ(all.value()[1], std::string(most.size(), 'b'));
  });
}

TEST(Rendezvous, IsReachedOverIpv4AndIpv6WhenServedOnEveryInterface) {
  auto server = serve(2, "");
  on_threads(2, [&](int rank) {
    auto options = options_for(*server, rank, 2);
    options.servers[0].host = rank == 0 ? "127.0.0.1" : "::1";
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "both");
  });
}

TEST(Rendezvous, ClientsMayStartBeforeTheServer) {
  auto free_port = serve(1);
  auto options = options_for(*free_port, 0, 1);
  free_port.reset();
  std::thread client([&] {
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "late");
  });
  auto server = RendezvousServer::start("127.0.0.1", options.servers[0].port, 1, kSecret);
  ASSERT_TRUE(server.is_ok()) << server.status().message();
  client.join();
}

TEST(Rendezvous, WaitingRanksAreToldWhoNeverCame) {
  auto server = serve(4);
  on_threads(2, [&](int i) {
    auto bootstrap = RendezvousBootstrap::create(options_for(*server, 2 * i, 4));
    ASSERT_TRUE(bootstrap.is_ok());
    const auto began = std::chrono::steady_clock::now();
    auto all = bootstrap.value()->all_gather("here", milliseconds(1000));
    EXPECT_LE(std::chrono::steady_clock::now() - began, milliseconds(1100));
    EXPECT_EQ(all.status().code(), StatusCode::kTimedOut);
    EXPECT_NE(all.status().message().find("ranks 1 and 3 never came"), std::string::npos)
        << all.status().message();
  });
}

TEST(Rendezvous, WhoTimedOutMeetsALateRankByTryingAgain) {
  auto server = serve(3);
  // For the ranks that try again it is their second generation, for the late one its first.
  for (int generation = 0; generation < 2; ++generation) {
    on_threads(generation == 0 ? 2 : 3, [&](int rank) {
      auto options = options_for(*server, rank, 3);
      options.generation = rank == 2 ? 0 : generation;
      auto bootstrap = RendezvousBootstrap::create(options);
      ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
      auto all = bootstrap.value()->all_gather("here", milliseconds(generation == 0 ? 300 : 10000));
      const auto expected = generation == 0 ? StatusCode::kTimedOut : StatusCode::kOk;
      EXPECT_EQ(all.status().code(), expected) << all.status().message();
    });
  }
  // From then on all are in step.
  on_threads(3, [&](int rank) {
    auto options = options_for(*server, rank, 3);
    options.generation = rank == 2 ? 1 : 2;
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 2, "again");
  });
}

TEST(Rendezvous, MissingRanksOfASubsetAreNamedAsLaunched) {
  auto server = serve(8);
  auto options = options_for(*server, 0, 2);
  options.ranks = {3, 6};
  auto bootstrap = RendezvousBootstrap::create(options);
  ASSERT_TRUE(bootstrap.is_ok());
  auto all = bootstrap.value()->all_gather("here", milliseconds(300));
  EXPECT_NE(all.status().message().find("rank 6 never came"), std::string::npos)
      << all.status().message();
}

TEST(Rendezvous, ARankThatLeavesEndsTheWaitOfTheOthersAtOnce) {
  auto server = serve(3);
  std::vector<std::unique_ptr<Bootstrap>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    auto bootstrap = RendezvousBootstrap::create(options_for(*server, rank, 3));
    ASSERT_TRUE(bootstrap.is_ok());
    ranks.push_back(std::move(bootstrap).value());
  }
  on_threads(3, [&](int rank) {
    if (rank == 1) {
      ranks[1].reset();
      return;
    }
    auto all = ranks[rank]->all_gather("here", seconds(20));
    EXPECT_EQ(all.status().code(), StatusCode::kAborted) << all.status().message();
    EXPECT_NE(all.status().message().find("rank 1 (127.0.0.1:"), std::string::npos)
        << all.status().message();
    // The failure stays.
    EXPECT_EQ(ranks[rank]->all_gather("again", seconds(20)).status().code(), StatusCode::kAborted);
  });
}

TEST(Rendezvous, AServerThatStopsEndsTheWait) {
  auto server = serve(2);
  auto bootstrap = RendezvousBootstrap::create(options_for(*server, 0, 2));
  ASSERT_TRUE(bootstrap.is_ok());
  std::thread waiting([&] {
    auto all = bootstrap.value()->all_gather("here", seconds(20));
    EXPECT_EQ(all.status().code(), StatusCode::kAborted) << all.status().message();
  });
  server.reset();
  waiting.join();
}

TEST(Rendezvous, ARankWithAnotherSecretIsRefused) {
  auto server = serve(2);
  auto options = options_for(*server, 0, 2);
  options.secret = "not the secret";
  options.time_out = seconds(1);
  auto bootstrap = RendezvousBootstrap::create(options);
  EXPECT_EQ(bootstrap.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(bootstrap.status().message().find("PERSEUS_SECRET"), std::string::npos);
}

TEST(Rendezvous, RefusesASecondProcessOfTheSameRank) {
  auto server = serve(2);
  auto first = RendezvousBootstrap::create(options_for(*server, 1, 2));
  ASSERT_TRUE(first.is_ok());
  auto second = RendezvousBootstrap::create(options_for(*server, 1, 2));
  EXPECT_EQ(second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.status().message().find("rank 1 is here already"), std::string::npos)
      << second.status().message();
}

TEST(Rendezvous, RefusesARankOfAJobOfAnotherSize) {
  auto server = serve(2);
  auto other = RendezvousBootstrap::create(options_for(*server, 2, 3));
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("PERSEUS_SIZE"), std::string::npos);
}

TEST(Rendezvous, AnUnreachableServerIsNamedWithinTheTimeOut) {
  auto gone = serve(1);
  auto options = options_for(*gone, 0, 1);
  gone.reset();
  options.time_out = milliseconds(200);
  auto bootstrap = RendezvousBootstrap::create(options);
  EXPECT_EQ(bootstrap.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(bootstrap.status().message().find(to_string(options.servers[0])), std::string::npos);
}

TEST(Rendezvous, AHostThatDoesNotExistIsNamedAtOnce) {
  RendezvousBootstrap::Options options;
  // No host can have such a name, so the result does not depend on a name server.
  options.servers = {HostPort{"no such host", 4711}};
  options.secret = kSecret;
  options.size = 2;
  options.time_out = seconds(300);
  auto bootstrap = RendezvousBootstrap::create(options);
  EXPECT_EQ(bootstrap.status().code(), StatusCode::kUnreachable);
  for (const char* part : {"no such host:4711", "cannot be resolved"}) {
    EXPECT_NE(bootstrap.status().message().find(part), std::string::npos)
        << bootstrap.status().message();
  }
}

TEST(Rendezvous, AServerThatComesLaterIsWaitedFor) {
  auto listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok());
  RendezvousBootstrap::Options options;
  options.servers = {HostPort{"127.0.0.1", listener.value().local_port()}};
  options.secret = kSecret;
  options.size = 1;
  std::unique_ptr<RendezvousServer> server;
  std::thread late([&] {
    int fd = -1;
    while (fd < 0) fd = accept(listener.value().fd(), nullptr, nullptr);
    // The first attempt fails: the port is closed, and then that connection.
    Socket first_attempt(fd);
    listener.value() = Socket();
    first_attempt = Socket();
    auto started = RendezvousServer::start("127.0.0.1", options.servers[0].port, 1, kSecret);
    ASSERT_TRUE(started.is_ok()) << started.status().message();
    server = std::move(started).value();
  });
  auto bootstrap = RendezvousBootstrap::create(options);
  late.join();
  EXPECT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
}

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

TEST(Rendezvous, NamesAllPlacesWhenItIsAtNone) {
  RendezvousBootstrap::Options options;
  for (int i = 0; i < 3; ++i) options.servers.push_back({"127.0.0.1", serve(1)->port()});
  options.secret = kSecret;
  options.time_out = milliseconds(200);
  const Status status = RendezvousBootstrap::create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnreachable);
  const std::string expected = "the rendezvous at " + to_string(options.servers[0]) + ", " +
                               std::to_string(options.servers[1].port) + " or " +
                               std::to_string(options.servers[2].port) + " could not be reached";
  EXPECT_TRUE(status.message().starts_with(expected)) << status.message();
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

TEST(RendezvousServer, NamesAnAddressThatItCannotServe) {
  auto first = serve(1);
  auto second = RendezvousServer::start("127.0.0.1", first->port(), 1, kSecret);
  EXPECT_EQ(second.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(second.status().message().find("127.0.0.1:" + std::to_string(first->port())),
            std::string::npos)
      << second.status().message();
}

TEST(RendezvousServer, ServesAtEachOfItsAddressesAndNoOther) {
  auto server =
      RendezvousServer::start(std::vector<std::string>{"127.0.0.1", "127.0.0.2"}, 0, 2, kSecret);
  ASSERT_TRUE(server.is_ok()) << server.status().message();
  on_threads(2, [&](int rank) {
    auto options = options_for(*server.value(), rank, 2);
    options.servers[0].host = rank == 0 ? "127.0.0.1" : "127.0.0.2";
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "each");
  });
  auto options = options_for(*server.value(), 0, 2);
  options.servers[0].host = "127.0.0.3";
  options.time_out = milliseconds(100);
  EXPECT_EQ(RendezvousBootstrap::create(options).status().code(), StatusCode::kUnreachable);
}

// Otherwise a data loader's worker would keep the port in use after its parent has been replaced.
TEST(Socket, IsClosedInAForkedChild) {
  auto listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok()) << listener.status().message();
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(listener.value().fd(), F_GETFD) == -1 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HostPort, ReadsNamesAndAddresses) {
  EXPECT_EQ(parse_host_port("node7:4711").value().host, "node7");
  EXPECT_EQ(parse_host_port("[fe80::1]:80").value().host, "fe80::1");
  EXPECT_EQ(parse_host_port("10.0.0.1:65535").value().port, 65535);
  EXPECT_EQ(to_string(parse_host_port("[::1]:80").value()), "[::1]:80");
  for (const char* bad :
       {"", "host", "host:", ":80", "host:0", "host:65536", "host:8x", "::1:80"}) {
    EXPECT_EQ(parse_host_port(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace perseus
