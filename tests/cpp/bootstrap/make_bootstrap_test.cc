#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/environment.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/spare_ports.h"

namespace perseus {
namespace {

const std::string kLaunchSecret = "sixteen bytes or more";

// Sets environment variables during a test, and unsets those of launchers that are not named.
class ScopedLaunch {
 public:
  explicit ScopedLaunch(const std::vector<std::pair<const char*, std::string>>& variables) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  }
  ~ScopedLaunch() {
    for (const char* name : kNames) unsetenv(name);
  }

 private:
  static constexpr const char* kNames[] = {
      "PERSEUS_RANK",     "PERSEUS_SIZE",         "PERSEUS_RENDEZVOUS",
      "PERSEUS_SECRET",   "PERSEUS_MASTER_PORT",  "RANK",
      "WORLD_SIZE",       "MASTER_ADDR",          "MASTER_PORT",
      "PMI_RANK",         "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
      "LOCAL_WORLD_SIZE", "PERSEUS_MASTER_ADDR",  "TORCHELASTIC_RUN_ID"};
};

TEST(MakeBootstrap, OutsideALaunchIsAWorldOfOne) {
  ScopedLaunch launch({});
  auto bootstrap = make_bootstrap(Settings(), {{}, 0, {}});
  ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  EXPECT_EQ(bootstrap.value()->rank(), 0);
  EXPECT_EQ(bootstrap.value()->size(), 1);
  auto all = bootstrap.value()->all_gather("mine", std::chrono::seconds(1));
  EXPECT_EQ(all.value(), std::vector<std::string>{"mine"});
}

TEST(MakeBootstrap, OutsideALaunchRefusesOtherRanks) {
  ScopedLaunch launch({});
  EXPECT_EQ(make_bootstrap(Settings(), {{1}, 0, {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(make_bootstrap(Settings(), {{0}, 0, {}}).is_ok());
}

TEST(MakeBootstrap, MeetsAtTheRendezvousAndKeepsARankThatIsLeftOutAlone) {
  auto server = RendezvousServer::start("127.0.0.1", 0, 2, kLaunchSecret);
  ASSERT_TRUE(server.is_ok());
  ScopedLaunch launch(
      {{"PERSEUS_RANK", "1"},
       {"PERSEUS_SIZE", "2"},
       {"PERSEUS_RENDEZVOUS", "127.0.0.1:" + std::to_string(server.value()->port())},
       {"PERSEUS_SECRET", to_hex(kLaunchSecret)}});
  auto bootstrap = make_bootstrap(Settings(), {{}, 0, {}});
  ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  EXPECT_EQ(bootstrap.value()->rank(), 1);
  EXPECT_EQ(bootstrap.value()->size(), 2);
  EXPECT_EQ(bootstrap.value()->secret(), kLaunchSecret);
  EXPECT_EQ(make_bootstrap(Settings(), {{1}, 1, {}}).value()->size(), 1);
  EXPECT_EQ(make_bootstrap(Settings(), {{0}, 1, {}}).value()->size(), 1);
  EXPECT_EQ(make_bootstrap(Settings(), {{2}, 1, {}}).status().code(), StatusCode::kInvalidArgument);
}

// A port that was free a moment ago.
std::string free_port() {
  auto server = RendezvousServer::start("127.0.0.1", 0, 1, "x");
  EXPECT_TRUE(server.is_ok());
  return std::to_string(server.value()->port());
}

TEST(MakeBootstrap, RanksOfOneHostAgreeOnASecretThatIsNotInTheirEnvironment) {
  const std::string port = free_port();
  std::vector<std::string> secrets;
  for (const char* rank : {"0", "1"}) {
    ScopedLaunch launch({{"RANK", rank},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "a-name-that-is-not-needed.invalid"},
                         {"MASTER_PORT", "1"},
                         {"TORCHELASTIC_RUN_ID", std::to_string(getpid())},
                         {"PERSEUS_MASTER_PORT", port}});
    const std::string name = read_launch_environment([] { return false; }).value().secret;
    auto bootstrap = make_bootstrap(Settings(), {{}, 0, {}});
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    EXPECT_NE(bootstrap.value()->secret(), name);
    secrets.push_back(bootstrap.value()->secret());
  }
  EXPECT_EQ(secrets[0], secrets[1]);
}

TEST(MakeBootstrap, UnderTorchrunRankZeroServesEveryGeneration) {
  const std::string port = free_port();
  for (int generation = 0; generation < 3; ++generation) {
    // Only one thread may read the environment at a time, but both must meet at the same time.
    std::vector<std::unique_ptr<Bootstrap>> ranks;
    for (const char* rank : {"0", "1"}) {
      ScopedLaunch launch({{"RANK", rank},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"PERSEUS_MASTER_PORT", port}});
      auto bootstrap = make_bootstrap(Settings(), {{}, generation, {}});
      ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
      ranks.push_back(std::move(bootstrap).value());
    }
    std::thread other(
        [&] { EXPECT_TRUE(ranks[1]->all_gather("b", std::chrono::seconds(10)).is_ok()); });
    auto all = ranks[0]->all_gather("a", std::chrono::seconds(10));
    other.join();
    ASSERT_TRUE(all.is_ok()) << all.status().message();
    EXPECT_EQ(all.value(), (std::vector<std::string>{"a", "b"}));
  }
}

TEST(MakeBootstrap, UnderTorchrunRanksMeetThoughPortsAreTaken) {
  // The ports two and four above that of the store.
  std::vector<Socket> taken;
  uint16_t store = 0;
  for (int attempt = 0; attempt < 50 && taken.size() < 2; ++attempt) {
    taken.clear();
    auto first = Socket::listen("127.0.0.1", 0);
    ASSERT_TRUE(first.is_ok());
    store = static_cast<uint16_t>(first.value().local_port() - 2);
    auto second = Socket::listen("127.0.0.1", store + 4);
    taken.push_back(std::move(first).value());
    if (second.is_ok()) taken.push_back(std::move(second).value());
  }
  ASSERT_EQ(taken.size(), 2U);
  for (const char* rank : {"0", "1"}) {
    ScopedLaunch launch({{"RANK", rank},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(store)},
                         {"TORCHELASTIC_RUN_ID", std::to_string(getpid())}});
    auto bootstrap = make_bootstrap(Settings(), {{}, 0, {}});
    EXPECT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  }
}

LaunchEnvironment torchrun_of_two_hosts(const std::string& secret) {
  LaunchEnvironment launch;
  launch.rank_0_serves = true;
  launch.any_port = true;
  launch.secret = secret;
  launch.rendezvous = {{"h1", 29502}, {"h1", 29504}};
  return launch;
}

TEST(MakeBootstrap, SparePortsFollowFromTheSecretAlone) {
  LaunchEnvironment one = torchrun_of_two_hosts(kLaunchSecret);
  LaunchEnvironment same = one;
  LaunchEnvironment other = torchrun_of_two_hosts("another secret");
  for (LaunchEnvironment* launch : {&one, &same, &other}) add_spare_ports(*launch);
  ASSERT_EQ(one.rendezvous.size(), 4U);
  for (size_t i = 2; i < one.rendezvous.size(); ++i) {
    EXPECT_EQ(to_string(one.rendezvous[i]), to_string(same.rendezvous[i]));
    EXPECT_NE(one.rendezvous[i].port, other.rendezvous[i].port);
    EXPECT_GE(one.rendezvous[i].port, 15000);
    EXPECT_LT(one.rendezvous[i].port, 31000);
  }
}

TEST(MakeBootstrap, WhereTheUserHasNamedAPortThereAreNoSpareOnes) {
  LaunchEnvironment launch = torchrun_of_two_hosts(kLaunchSecret);
  launch.any_port = false;
  add_spare_ports(launch);
  EXPECT_EQ(launch.rendezvous.size(), 2U);
}

TEST(MakeBootstrap, UnderTorchrunTheEndOfRankZeroIsNamed) {
  auto server = RendezvousServer::start("127.0.0.1", 0, 2, kLaunchSecret);
  ASSERT_TRUE(server.is_ok());
  const std::string port = std::to_string(server.value()->port());
  ScopedLaunch launch({{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"PERSEUS_MASTER_PORT", port},
                       {"PERSEUS_SECRET", to_hex(kLaunchSecret)}});
  auto bootstrap = make_bootstrap(Settings(), {{}, 0, {}});
  ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
  server.value().reset();
  const Status status = bootstrap.value()->all_gather("b", std::chrono::seconds(10)).status();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_TRUE(status.message().starts_with(
      "rank 0, which serves the rendezvous at 127.0.0.1:" + port + ", has ended or closed it: "))
      << status.message();
}

}  // namespace
}  // namespace perseus
