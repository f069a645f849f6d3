// Tests making and closing meshes: settings, strangers, errors, and that nothing is left behind.
#include "transport/mesh.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <latch>

#include "perseus/perseus.h"
#include "transport/address_card.h"
#include "transport/handshake.h"
#include "transport/thread_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

Task say_hello_to_all(RankContext& rank) {
  for (int peer = 0; peer < rank.size; ++peer) {
    if (peer != rank.rank) rank.send_text(peer, "hello");
  }
  while (static_cast<int>(rank.listener.controls.size()) < rank.size - 1) {
    auto news = rank.listener.news();
    co_await news;
  }
  co_return Status::ok();
}

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(MeshTest, HundredsOfMeshesLeaveNoDescriptorsBehind) {
  const int before = open_descriptors();
  for (int i = 0; i < 150; ++i) {
    for (const char* transport : {"shm", "tcp"}) {
      const Settings settings =
          test_settings({{"PERSEUS_TRANSPORT", transport}, {"PERSEUS_ALLREDUCE_STREAMS", "2"}});
      expect_world_ok(2, settings, say_hello_to_all);
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

// Ranks that each have a setting of their own.
std::vector<Status> run_with(const std::vector<Settings>& settings, const RankBody& body,
                             const std::vector<std::string>& secrets = {}) {
  const int size = static_cast<int>(settings.size());
  ThreadRendezvous rendezvous(size);
  std::vector<Status> outcomes(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(rendezvous, rank,
                                secrets.empty() ? rendezvous.secret() : secrets[rank]);
      outcomes[rank] = run_rank(rendezvous, bootstrap, settings[rank], body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_all(const std::vector<Status>& outcomes, StatusCode code, const std::string& part) {
  for (const Status& status : outcomes) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(MeshTest, ASettingThatDiffersIsNamedOnEveryRank) {
  const auto outcomes =
      run_with({test_settings(), test_settings({{"PERSEUS_CHUNK", "64"}})}, say_hello_to_all);
  expect_all(outcomes, StatusCode::kInvalidArgument, "PERSEUS_CHUNK");
  expect_all(outcomes, StatusCode::kInvalidArgument, "rank 1");
}

TEST(MeshTest, WhatOnlyOneRankKeepsFromTheTunerIsNamedOnEveryRank) {
  const auto outcomes =
      run_with({test_settings(), test_settings({{"PERSEUS_CREDIT", "16"}})}, say_hello_to_all);
  expect_all(outcomes, StatusCode::kInvalidArgument, "PERSEUS_CREDIT is '16' on rank 1");
  expect_all(outcomes, StatusCode::kInvalidArgument, "'16 (not set)' on rank 0");
  const char* off = "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING";
  for (const Status& status : run_with(
           {test_settings({{off, "1"}}), test_settings({{off, "1"}, {"PERSEUS_CHUNK", "128"}})},
           say_hello_to_all)) {
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
}

TEST(MeshTest, ASettingWithAnotherDefaultForGpusMustBeSetOnAllRanksOrNone) {
  const char* off = "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING";
  for (const auto& [name, value] : {std::pair{"PERSEUS_CREDIT", "16"},
                                    {"PERSEUS_ALLREDUCE_FUSION", "0.5"},
                                    {"PERSEUS_ALLREDUCE_SHARD", "0.5"}}) {
    const auto outcomes =
        run_with({test_settings({{off, "1"}}), test_settings({{off, "1"}, {name, value}})},
                 say_hello_to_all);
    expect_all(outcomes, StatusCode::kInvalidArgument,
               name + std::string(" is '") + value + "' on rank 1");
  }
}

TEST(MeshTest, AnUnknownInterfaceIsNamedOnEveryRank) {
  const auto outcomes = run_with(
      {test_settings(), test_settings({{"PERSEUS_INTERFACES", "lo,nosuch7"}})}, say_hello_to_all);
  expect_all(outcomes, StatusCode::kInvalidArgument, "'nosuch7'");
  expect_all(outcomes, StatusCode::kInvalidArgument, "rank 1");
}

TEST(MeshTest, AGivenInterfaceIsUsed) {
  const Settings settings =
      test_settings({{"PERSEUS_TRANSPORT", "tcp"}, {"PERSEUS_INTERFACES", "lo"}});
  expect_world_ok(2, settings, [](RankContext& rank) -> Task {
    const auto card = AddressCard::unpack(rank.rendezvous.wait_until_gathered()[0]);
    for (const Endpoint& endpoint : card.value().tcp) EXPECT_TRUE(endpoint.is_loopback());
    Task hello = say_hello_to_all(rank);
    co_return co_await std::move(hello);
  });
}

Task expect_loss(RankContext& rank, std::string part) {
  rank.send_text(1 - rank.rank, "hello");
  while (rank.listener.lost.empty()) {
    auto news = rank.listener.news();
    co_await news;
  }
  EXPECT_NE(rank.listener.lost[0].why.message().find(part), std::string::npos)
      << rank.listener.lost[0].why.message();
  co_return Status::ok();
}

TEST(MeshTest, RanksWithDifferentSecretsRefuseEachOther) {
  for (const char* transport : {"shm", "tcp"}) {
    const Settings settings = test_settings({{"PERSEUS_TRANSPORT", transport}});
    std::atomic<int> refused{0};
    const RankBody body = [&](RankContext& rank) -> Task {
      Task loss = expect_loss(rank, "secret");
      Status status = co_await std::move(loss);
      ++refused;
      while (refused != 2) {  // a rank that leaves early would not be found
        NextTurn next{rank.loop};
        co_await next;
      }
      co_return status;
    };
    expect_all(run_with({settings, settings}, body, {"one", "another"}), StatusCode::kOk, "");
  }
}

TEST(MeshTest, APeerThatHasShutDownBeforeAnyConnectionIsNamedInBoundedTime) {
  for (const char* transport : {"shm", "tcp"}) {
    std::latch gone(1);
    const Settings settings = test_settings({{"PERSEUS_TRANSPORT", transport}});
    ThreadRendezvous rendezvous(2);
    std::thread other([&] {
      ThreadBootstrap bootstrap(rendezvous, 1);
      const Status status = run_rank(rendezvous, bootstrap, settings,
                                     [](RankContext&) -> Task { co_return Status::ok(); });
      EXPECT_TRUE(status.is_ok());
      gone.count_down();
    });
    ThreadBootstrap bootstrap(rendezvous, 0);
    const auto start = Clock::now();
    const Status status = run_rank(rendezvous, bootstrap, settings, [&](RankContext& rank) {
      gone.wait();
      return expect_loss(rank, "lost rank 1 on ");
    });
    EXPECT_TRUE(status.is_ok());
    EXPECT_LT(Clock::now() - start, 10s);
    other.join();
  }
}

// A raw connection to an endpoint of rank 0.
FileDescriptor connect_to(const Endpoint& endpoint) {
  FileDescriptor fd(socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), endpoint.get(), endpoint.length), 0) << endpoint.to_string();
  return fd;
}

// Reads to the end of the stream; returns -1 if it does not end within seconds.
ssize_t read_to_end(const FileDescriptor& fd) {
  ssize_t total = 0;
  char bytes[256];
  for (;;) {
    pollfd wanted{fd.get(), POLLIN, 0};
    if (poll(&wanted, 1, 15000) <= 0) return -1;
    const ssize_t n = read(fd.get(), bytes, sizeof bytes);
    if (n <= 0) return total;
    total += n;
  }
}

constexpr ssize_t kGreeting = sizeof(Greeting);

void be_a_stranger(const Endpoint& endpoint, const AddressCard& card, const std::string& secret) {
  // Noise.
  const FileDescriptor noise = connect_to(endpoint);
  const std::string garbage(500, 'g');
  EXPECT_EQ(write(noise.get(), garbage.data(), garbage.size()), 500);
  EXPECT_EQ(read_to_end(noise), kGreeting);

  Introduction introduction;
  Hello& hello = introduction.hello;
  hello.job = card.nonce;
  hello.from = 1;
  hello.to = 0;
  hello.purpose = Hello::kConnectRequest;
  hello.called = digest_of(endpoint);
  // The right job, a proof of the wrong secret.
  const FileDescriptor impostor = connect_to(endpoint);
  Greeting greeting;
  EXPECT_EQ(recv(impostor.get(), &greeting, sizeof greeting, MSG_WAITALL), kGreeting);
  introduction.proof = prove("guessed", greeting, hello);
  EXPECT_TRUE(send_message(impostor.get(), introduction));
  EXPECT_EQ(read_to_end(impostor), 0);

  // The right proof, for the greeting of another connection.
  const FileDescriptor replayer = connect_to(endpoint);
  introduction.proof = prove(secret, greeting, hello);
  EXPECT_TRUE(send_message(replayer.get(), introduction));
  EXPECT_EQ(read_to_end(replayer), kGreeting);
}

// A rank of the job called another address, and somebody passes on what it says.
void be_a_relay(const Endpoint& endpoint, const AddressCard& card, const std::string& secret) {
  const FileDescriptor relay = connect_to(endpoint);
  Greeting greeting;
  EXPECT_EQ(recv(relay.get(), &greeting, sizeof greeting, MSG_WAITALL), kGreeting);
  Introduction introduction;
  introduction.hello.job = card.nonce;
  introduction.hello.from = 1;
  introduction.hello.purpose = Hello::kConnectRequest;
  introduction.hello.called = digest_of(Endpoint::unix_name("the relay"));
  introduction.proof = prove(secret, greeting, introduction.hello);
  EXPECT_TRUE(send_message(relay.get(), introduction));
  Welcome welcome;
  EXPECT_EQ(recv(relay.get(), &welcome, sizeof welcome, MSG_WAITALL),
            static_cast<ssize_t>(sizeof welcome));
  Session session = make_session(secret, greeting, introduction, Role::kInitiator);
  EXPECT_TRUE(session.incoming.is_next(view(welcome.tag), {bytes_of(welcome.verdict)}));
  EXPECT_EQ(welcome.verdict, Welcome::kNotCalledHere);
  EXPECT_EQ(read_to_end(relay), 0);
}

TEST(MeshTest, StrangersAreTurnedAwayAndDisturbNobody) {
  for (const char* transport : {"shm", "tcp"}) {
    std::latch done(1);
    const Settings settings = test_settings({{"PERSEUS_TRANSPORT", transport}});
    ThreadRendezvous rendezvous(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        ThreadBootstrap bootstrap(rendezvous, rank);
        const RankBody body = [&](RankContext& context) -> Task {
          while (!done.try_wait()) {  // strangers come while the loop runs
            NextTurn next{context.loop};
            co_await next;
          }
          Task hello = say_hello_to_all(context);
          co_return co_await std::move(hello);
        };
        const Status status = run_rank(rendezvous, bootstrap, settings, body);
        EXPECT_TRUE(status.is_ok()) << status.message();
      });
    }
    const AddressCard card = AddressCard::unpack(rendezvous.wait_until_gathered()[0]).value();
    Endpoint endpoint = Endpoint::unix_name(card.unix_name);
    for (const Endpoint& tcp : card.tcp) {
      if (tcp.is_loopback()) endpoint = tcp;
    }
    be_a_stranger(endpoint, card, rendezvous.secret());
    be_a_relay(endpoint, card, rendezvous.secret());
    const FileDescriptor silent = connect_to(endpoint);  // sends nothing
    done.count_down();
    for (std::thread& thread : ranks) thread.join();
  }
}

TEST(MeshTest, AWorldOfOneOpensAndCloses) {
  expect_world_ok(1, test_settings(), [](RankContext& rank) -> Task {
    EXPECT_EQ(rank.mesh.topology().size, 1);
    EXPECT_EQ(rank.mesh.topology().local_size(), 1);
    EXPECT_TRUE(rank.mesh.topology().is_homogeneous());
    co_return Status::ok();
  });
}

TEST(MeshTest, ARankHasNoLinkToItself) {
  expect_world_ok(2, test_settings(), [](RankContext& rank) -> Task {
    char byte = 0;
    Transfer transfer;
    rank.mesh.link(rank.rank).receive(transfer, Tag{1, 0, 0}, &byte, 1);
    Status status = co_await transfer;
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    co_return Status::ok();
  });
}

Topology topology_of(const std::vector<std::string>& hosts, int rank) {
  std::vector<AddressCard> cards(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) cards[i].host_name = hosts[i];
  return make_topology(rank, cards);
}

TEST(TopologyTest, HostsAreNumberedByTheirLowestRank) {
  const Topology topology = topology_of({"b", "a", "b", "a"}, 3);
  EXPECT_EQ(topology.host_of, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(topology.host_names, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(topology.local_rank(), 1);
  EXPECT_EQ(topology.local_size(), 2);
  EXPECT_EQ(topology.cross_rank(), 1);
  EXPECT_EQ(topology.cross_size(), 2);
  EXPECT_TRUE(topology.is_homogeneous());
}

TEST(TopologyTest, CrossRanksCountOnlyHostsThatHaveTheLocalRank) {
  const Topology topology = topology_of({"a", "b", "b", "c", "c"}, 4);
  EXPECT_EQ(topology.local_rank(), 1);
  EXPECT_EQ(topology.cross_rank(), 1);
  EXPECT_EQ(topology.cross_size(), 2);
  EXPECT_FALSE(topology.is_homogeneous());
}

TEST(TopologyTest, LocalRanksFollowTheSlotsThatTheLauncherHasGiven) {
  std::vector<AddressCard> cards(4);
  const std::vector<std::string> hosts{"a", "a", "b", "a"};
  const std::vector<int> slots{1, 0, 5, 3};
  for (size_t i = 0; i < cards.size(); ++i) {
    cards[i].host_name = hosts[i];
    cards[i].slot = slots[i];
  }
  std::vector<int> local_ranks;
  std::vector<int> cross_ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const Topology topology = make_topology(rank, cards);
    local_ranks.push_back(topology.local_rank());
    cross_ranks.push_back(topology.cross_rank());
  }
  EXPECT_EQ(local_ranks, (std::vector<int>{1, 0, 0, 2}));
  EXPECT_EQ(cross_ranks, (std::vector<int>{0, 0, 1, 0}));
}

TEST(TopologyTest, OneNameOnTwoMachinesIsTwoHosts) {
  std::vector<AddressCard> cards(2);
  cards[0].host_name = cards[1].host_name = "node";
  cards[0].machine = "boot 1";
  cards[1].machine = "boot 2";
  EXPECT_EQ(make_topology(0, cards).host_names.size(), 2u);
}

// The processors of each rank are bits of a number.
std::vector<int> shares_of(const std::vector<uint64_t>& processors) {
  std::vector<AddressCard> cards(processors.size());
  std::vector<int> shares;
  for (size_t i = 0; i < cards.size(); ++i) cards[i].processors = Processors({0, processors[i]});
  for (size_t i = 0; i < cards.size(); ++i) {
    shares.push_back(make_topology(static_cast<int>(i), cards).processor_share);
  }
  return shares;
}

TEST(TopologyTest, RanksShareTheProcessorsThatTheyMayRunOn) {
  EXPECT_EQ(shares_of({0xff, 0xff}), (std::vector<int>{4, 4}));
  EXPECT_EQ(shares_of({0xff, 0xff, 0xff}), (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(shares_of({0x1, 0x1, 0x1}), (std::vector<int>{1, 1, 1}));
  // Bound to processors of their own, in part or altogether.
  EXPECT_EQ(shares_of({0x0f, 0xf0}), (std::vector<int>{4, 4}));
  EXPECT_EQ(shares_of({0xff, 0xff, 0xf00}), (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(shares_of({0, 0}), (std::vector<int>{1, 1}));  // could not be found out
}

TEST(TopologyTest, RanksOfAnotherMachineTakeNoProcessors) {
  std::vector<AddressCard> cards(2);
  for (AddressCard& card : cards) card.processors = Processors({0xf});
  cards[0].machine = "boot 1";
  cards[1].machine = "boot 2";
  EXPECT_EQ(make_topology(0, cards).processor_share, 4);
}

TEST(AddressCardTest, ArrivesWithTheProcessorsAndTheirCaches) {
  AddressCard card = AddressCard::of_this_process(Settings());
  EXPECT_FALSE(card.processors.is_empty());
  card.processors = Processors({0, 5});
  card.caches = {Processors({0, 1}), Processors({0, 4})};
  card.thread_affinity = "auto";
  const AddressCard arrived = AddressCard::unpack(card.pack()).value();
  EXPECT_EQ(arrived.processors, card.processors);
  EXPECT_EQ(arrived.caches, card.caches);
  EXPECT_EQ(arrived.thread_affinity, "auto");
}

TEST(TopologyTest, NamesARankWithWhatTheLauncherCallsIt) {
  Topology topology{
      .rank = 0, .size = 2, .host_of = {0, 1}, .host_names = {"a", "b"}, .launched = {0, 3}};
  EXPECT_EQ(topology.name(0), "rank 0 on a");
  EXPECT_EQ(topology.name(1), "rank 1 (launched as rank 3) on b");
}

TEST(AddressCardTest, NamesARankOfAnotherVersionOrBuild) {
  const std::string packed = AddressCard::of_this_process(Settings()).pack();
  const std::string version = std::to_string(PERSEUS_VERSION_MAJOR) + "." +
                              std::to_string(PERSEUS_VERSION_MINOR) + "." +
                              std::to_string(PERSEUS_VERSION_PATCH);
  const size_t at = packed.find(version);
  ASSERT_NE(at, std::string::npos);
  std::string other_version = packed, other_build = packed;
  other_version[at] = '9';
  char& digit = other_build[at + version.size() + sizeof(uint32_t)];
  digit = digit == '0' ? '1' : '0';
  const auto message = [&](const std::string& theirs) {
    const Status status = unpack_cards({packed, theirs}).status();
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    return status.message();
  };
  EXPECT_EQ(message(other_version), "rank 1 runs Perseus 9" + version.substr(1) + ", this rank " +
                                        version + "; install the same on all hosts");
  EXPECT_NE(message(other_build).find("rank 1 runs another build of Perseus " + version),
            std::string::npos);
}

TEST(AddressCardTest, SurvivesPackingAndRefusesDamage) {
  AddressCard card = AddressCard::of_this_process(Settings());
  card.unix_name = "perseus-x";
  card.tcp.push_back(Endpoint::unix_name("y"));
  const std::string packed = card.pack();
  const auto copy = AddressCard::unpack(packed);
  ASSERT_TRUE(copy.is_ok());
  EXPECT_EQ(copy.value().agreed, card.agreed);
  EXPECT_EQ(copy.value().nonce, card.nonce);
  EXPECT_EQ(copy.value().tcp[0].to_string(), "unix:y");
  EXPECT_TRUE(copy.value().same_host(card));
  for (size_t length = 0; length < packed.size(); ++length) {
    EXPECT_FALSE(AddressCard::unpack(packed.substr(0, length)).is_ok()) << length;
  }
}

}  // namespace
}  // namespace perseus
