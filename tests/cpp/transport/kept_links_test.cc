// Tests that ranks keep their connections from world to world, and only those that they can trust.
// Ranks are threads; each is a process by its KeptLinks.
#include "transport/kept_links.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <latch>

#include "transport/mesh.h"
#include "transport/thread_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

const char* const kTransports[] = {"shm", "tcp"};
constexpr int kStreams = 2;
// Of one rank to one other: those that carry data, and the express channel.
uint64_t connections(std::string_view transport) { return transport == "shm" ? 1 : 1 + kStreams; }

Settings settings_for(const char* transport, const char* wire = "plain") {
  return test_settings({{"PERSEUS_TRANSPORT", transport},
                        {"PERSEUS_WIRE", wire},
                        {"PERSEUS_ALLREDUCE_STREAMS", "2"},
                        {"PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING", "1"}});
}

// What a rank does in a world, and what has become of its connections.
struct Outcome {
  Status status;
  Mesh::Counters counters;
};

// One rank in one world. `body` ends with the world; `leave` then closes the mesh.
Outcome in_world(KeptLinks* kept, ThreadRendezvous& rendezvous, int rank, const Settings& settings,
                 const RankBody& body, std::chrono::milliseconds linger = 20s) {
  ThreadBootstrap bootstrap(rendezvous, rank);
  EventLoop loop(20us, kept == nullptr ? nullptr : kept->doorbell());
  TestListener listener(loop);
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create(loop, settings, bootstrap, "", kept);
  if (!mesh.is_ok()) return {mesh.status(), {}};
  mesh.value()->listen(listener);
  RankContext context{rank, bootstrap.size(), loop, *mesh.value(), listener, rendezvous};
  RankRun run(loop, *mesh.value(), linger);
  loop.post([&] { body(context).start(&run); });
  loop.run();
  return {run.status, mesh.value()->counters()};
}

// The worlds that processes are in, one after the other. `members`: the process of each rank.
class Processes {
 public:
  explicit Processes(int number) : kept_(number) {}

  // Returns the outcome of each rank. `ended` is called when a rank has closed its mesh.
  std::vector<Outcome> live(
      const std::vector<int>& members, const Settings& settings, const RankBody& body,
      const std::function<void(int rank)>& ended = [](int) {}) {
    ThreadRendezvous rendezvous(static_cast<int>(members.size()));
    std::vector<Outcome> outcomes(members.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      threads.emplace_back([&, rank] {
        outcomes[rank] =
            in_world(&kept_[members[rank]], rendezvous, static_cast<int>(rank), settings, body);
        ended(static_cast<int>(rank));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.is_ok()) << outcome.status.message();
    }
    return outcomes;
  }
  KeptLinks& links_of(int process) { return kept_[process]; }
  // The process dies: its connections end.
  void kill(int process) { kept_[process].clear(); }

 private:
  std::vector<KeptLinks> kept_;
};

constexpr size_t kFloats = 100'000;

// Sends each peer as many numbers, which say who has sent them in which world, and checks what
// comes.
RankBody exchange(float world) {
  return [world](RankContext& rank) -> Task {
    std::vector<std::vector<float>> out, in(rank.size, std::vector<float>(kFloats));
    std::deque<Transfer> sends(rank.size), receives(rank.size);
    for (int peer = 0; peer < rank.size; ++peer) {
      const auto mine = static_cast<float>(rank.rank * 100 + peer);
      out.push_back(std::vector<float>(kFloats, world * 10'000 + mine));
    }
    const Tag tag{1, 2, 3};  // the same in each world
    for (int peer = 0; peer < rank.size; ++peer) {
      if (peer == rank.rank) continue;
      rank.send_text(peer, "of world " + std::to_string(world));
      Link& link = rank.mesh.link(peer);
      link.send(sends[peer], tag, out[peer].data(), kFloats * sizeof(float), 0);
      link.receive(receives[peer], tag, in[peer].data(), kFloats * sizeof(float));
    }
    for (int peer = 0; peer < rank.size; ++peer) {
      if (peer == rank.rank) continue;
      Transfer &send = sends[peer], &receive = receives[peer];
      const Status sent = co_await send;
      const Status received = co_await receive;
      if (!sent.is_ok()) co_return sent;
      if (!received.is_ok()) co_return received;
      const float expected = world * 10'000 + static_cast<float>(peer * 100 + rank.rank);
      EXPECT_EQ(in[peer], std::vector<float>(kFloats, expected));
    }
    while (static_cast<int>(rank.listener.controls.size()) < rank.size - 1) {
      auto news = rank.listener.news();
      co_await news;
    }
    for (const auto& message : rank.listener.controls) {
      EXPECT_EQ(message.text, "of world " + std::to_string(world));
    }
    co_return Status::ok();
  };
}

TEST(KeptLinksTest, ConnectionsAreKeptFromWorldToWorldOverEachTransportAndWire) {
  for (const auto& [transport, wire] : {std::pair{"shm", "plain"},
                                        {"tcp", "plain"},
                                        {"tcp", "authenticated"},
                                        {"tcp", "encrypted"}}) {
    SCOPED_TRACE(std::string(transport) + " " + wire);
    Processes processes(3);
    const Settings settings = settings_for(transport, wire);
    for (int world = 0; world < 4; ++world) {
      for (const Outcome& outcome :
           processes.live({0, 1, 2}, settings, exchange(static_cast<float>(world)))) {
        const uint64_t all = 2 * connections(transport);
        EXPECT_EQ(outcome.counters.connections_kept, world == 0 ? 0 : all);
        EXPECT_EQ(outcome.counters.connections_made, world == 0 ? all : 0);
      }
    }
  }
}

TEST(KeptLinksTest, SurvivorsKeepTheirConnectionsWhateverTheirRanksAndJoinersGetNewOnes) {
  for (const char* transport : kTransports) {
    SCOPED_TRACE(transport);
    Processes processes(5);
    const Settings settings = settings_for(transport);
    const uint64_t one = connections(transport);
    processes.live({0, 1, 2, 3}, settings, exchange(1));
    processes.kill(1);
    for (const Outcome& outcome : processes.live({3, 2, 0}, settings, exchange(2))) {
      EXPECT_EQ(outcome.counters.connections_kept, 2 * one);
      EXPECT_EQ(outcome.counters.connections_made, 0u);
    }
    processes.kill(0);
    const std::vector<Outcome> last = processes.live({2, 4, 3}, settings, exchange(3));
    for (const int survivor : {0, 2}) {
      EXPECT_EQ(last[survivor].counters.connections_kept, one);
      EXPECT_EQ(last[survivor].counters.connections_made, one);
    }
    EXPECT_EQ(last[1].counters.connections_kept, 0u);
    EXPECT_EQ(last[1].counters.connections_made, 2 * one);
  }
}

TEST(KeptLinksTest, AConnectionThatOnlyOneEndHasIsReplaced) {
  for (const char* transport : kTransports) {
    for (const int lacks : {0, 1}) {
      SCOPED_TRACE(std::string(transport) + ", process " + std::to_string(lacks));
      Processes processes(2);
      const Settings settings = settings_for(transport);
      processes.live({0, 1}, settings, exchange(1));
      EXPECT_FALSE(processes.links_of(lacks).is_empty());
      processes.links_of(lacks).drop_links();
      for (const Outcome& outcome : processes.live({0, 1}, settings, exchange(2))) {
        EXPECT_EQ(outcome.counters.connections_kept, 0u);
        EXPECT_EQ(outcome.counters.connections_made, connections(transport));
      }
    }
  }
}

TEST(KeptLinksTest, ConnectionsThatWereMadeWithOtherSettingsAreReplaced) {
  Processes processes(2);
  processes.live({0, 1}, settings_for("tcp"), exchange(1));
  for (const Outcome& outcome :
       processes.live({0, 1}, settings_for("tcp", "authenticated"), exchange(2))) {
    EXPECT_EQ(outcome.counters.connections_kept, 0u);
  }
  for (const Outcome& outcome : processes.live({0, 1}, settings_for("shm"), exchange(3))) {
    EXPECT_EQ(outcome.counters.connections_kept, 0u);
    EXPECT_EQ(outcome.counters.connections_made, 1u);
  }
}

TEST(KeptLinksTest, ALinkIsKeptThatOnlyOneEndNeeds) {
  for (const char* transport : kTransports) {
    for (const int needs : {0, 1}) {
      SCOPED_TRACE(std::string(transport) + ", rank " + std::to_string(needs));
      Processes processes(2);
      const Settings settings = settings_for(transport);
      processes.live({0, 1}, settings, exchange(1));
      const auto body = [&](RankContext& rank) -> Task {
        if (rank.rank == needs) {
          rank.send_text(1 - needs, "hello");
        } else {
          while (rank.listener.controls.empty()) {
            auto news = rank.listener.news();
            co_await news;
          }
        }
        co_return rank.listener.lost.empty() ? Status::ok() : rank.listener.lost[0].why;
      };
      for (const Outcome& outcome : processes.live({0, 1}, settings, body)) {
        EXPECT_EQ(outcome.counters.connections_kept, connections(transport));
        EXPECT_EQ(outcome.counters.connections_made, 0u);
      }
    }
  }
}

struct IdleChannel final : Channel {
  explicit IdleChannel(Kind kind) : kind_(kind) {}
  Kind kind() const override { return kind_; }
  void start() override {}
  void kick() override {}
  void close() override {}
  const Kind kind_;
};

TEST(KeptLinksTest, AnOutboxOfWhichTheDeadHoldTooMuchIsReplacedWithTheLinksThatUseIt) {
  const Settings settings = settings_for("shm");
  KeptLinks links;
  links.prepare_for(settings, "secret");
  const Nonce neighbour = random_nonce(), remote = random_nonce();
  const auto put = [&](const Nonce& process, Channel::Kind kind) {
    KeptLinks::Channels channels;
    channels.push_back(std::make_unique<IdleChannel>(kind));
    links.put(process, std::move(channels));
  };
  put(neighbour, Channel::Kind::kShm);
  put(remote, Channel::Kind::kTcp);
  ASSERT_TRUE(links.outbox().open_for_peer().is_ok());
  links.prepare_for(settings, "secret");
  const std::string text = "on loan to a rank that has died";
  Frame frame;
  frame.header.length = static_cast<uint32_t>(text.size());
  frame.header.size = text.size();
  frame.data = reinterpret_cast<const std::byte*>(text.data());
  while (!links.outbox().is_worn()) ASSERT_NE(links.outbox().put(frame), kInline);
  links.prepare_for(settings, "secret");
  EXPECT_FALSE(links.outbox().is_worn());
  EXPECT_TRUE(links.take(neighbour).empty());
  EXPECT_EQ(links.take(remote).size(), 1u);
}

Task does_nothing(RankContext&) { co_return Status::ok(); }

TEST(KeptLinksTest, LinksThatAWorldDoesNotNeedAreThereForTheNext) {
  for (const char* transport : kTransports) {
    SCOPED_TRACE(transport);
    Processes processes(2);
    const Settings settings = settings_for(transport);
    processes.live({0, 1}, settings, exchange(1));
    processes.live({0, 1}, settings, does_nothing);
    for (const Outcome& outcome : processes.live({0, 1}, settings, exchange(2))) {
      EXPECT_EQ(outcome.counters.connections_kept, connections(transport));
    }
  }
}

// Ends the world as an engine does that has lost a rank: with transfers under way.
RankBody break_in_mid_transfer(std::vector<float>& large, std::latch& all_under_way) {
  return [&](RankContext& rank) -> Task {
    constexpr size_t kBytes = 32 << 20;
    const int peer = 1 - rank.rank;
    // What is sent goes away at once, as it does when the program has its error.
    std::vector<float> mine(kBytes / sizeof(float), 1.0f);
    Transfer send, receive, never;
    Link& link = rank.mesh.link(peer);
    // A link whose connections are not all there yet is not cut.
    rank.send_text(peer, "connect");
    while (!rank.mesh.is_connected(peer)) {
      NextTurn next{rank.loop};
      co_await next;
    }
    link.send(send, Tag{1, 0, 0}, mine.data(), kBytes, 0);
    link.receive(receive, Tag{1, 0, 0}, large.data() + rank.rank * kBytes / sizeof(float), kBytes);
    link.receive(never, Tag{2, 0, 0}, large.data(), 4);
    while (receive.moved == 0) {
      NextTurn next{rank.loop};
      co_await next;
    }
    all_under_way.arrive_and_wait();
    rank.mesh.cut_all(Status::aborted("a rank has died"), {});
    const Status awaited = co_await never;
    const Status sent = co_await send;
    const Status received = co_await receive;
    EXPECT_EQ(awaited.message(), "a rank has died");
    EXPECT_FALSE(sent.is_ok());
    EXPECT_FALSE(received.is_ok());
    std::fill(mine.begin(), mine.end(), -1.0f);
    rank.mesh.fail_all(Status::aborted("a rank has died"));
    co_return Status::ok();
  };
}

TEST(KeptLinksTest, AConnectionIsKeptThoughItsWorldEndedInTheMiddleOfAFrame) {
  for (const auto& [transport, wire] : {std::pair{"shm", "plain"},
                                        {"tcp", "plain"},
                                        {"tcp", "authenticated"},
                                        {"tcp", "encrypted"}}) {
    SCOPED_TRACE(std::string(transport) + " " + wire);
    Processes processes(2);
    const Settings settings = settings_for(transport, wire);
    std::vector<float> large(2 * (32 << 20) / sizeof(float));
    std::latch all_under_way(2);
    processes.live({0, 1}, settings, break_in_mid_transfer(large, all_under_way));
    // A receive that has ended writes no more.
    std::fill(large.begin(), large.end(), 7.0f);
    for (const Outcome& outcome : processes.live({1, 0}, settings, exchange(2))) {
      EXPECT_EQ(outcome.counters.connections_kept, connections(transport));
      EXPECT_EQ(outcome.counters.connections_made, 0u);
    }
    EXPECT_EQ(large, std::vector<float>(large.size(), 7.0f));
  }
}

TEST(KeptLinksTest, ALinkToAPeerThatDoesNotAnswerIsNotWaitedForLong) {
  for (const char* transport : kTransports) {
    SCOPED_TRACE(transport);
    Processes processes(2);
    std::latch met(2), first_has_closed(1);
    const auto began = Clock::now();
    const auto body = [&](RankContext& rank) -> Task {
      rank.send_text(1 - rank.rank, "hello");
      while (rank.listener.controls.empty()) {
        auto news = rank.listener.news();
        co_await news;
      }
      met.arrive_and_wait();
      rank.mesh.cut_all(Status::aborted("a rank has died"), {});
      if (rank.rank == 1) first_has_closed.wait();  // its loop stands still
      co_return Status::ok();
    };
    processes.live({0, 1}, settings_for(transport), body, [&](int rank) {
      if (rank == 0) first_has_closed.count_down();
    });
    EXPECT_TRUE(processes.links_of(0).is_empty());
    EXPECT_LT(Clock::now() - began, 10s);
  }
}

}  // namespace
}  // namespace perseus
