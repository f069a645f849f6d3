#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_server.h"
#include "rendezvous_job.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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

}  // namespace
}  // namespace perseus
