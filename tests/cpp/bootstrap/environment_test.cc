#include "bootstrap/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "bootstrap/slurm.h"

namespace perseus {
namespace {

using Values = std::map<std::string, std::string>;
using Kind = LaunchEnvironment::Kind;

Result<LaunchEnvironment> read(const Values& values, bool mpi_library = true) {
  Variables variables;
  variables.get = [&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
  return read_launch_environment(variables, [=] { return mpi_library; });
}

Values with(Values variables, const Values& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Values without(Values variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void expect_complaint(const Values& variables, const std::string& part) {
  const auto result = read(variables);
  ASSERT_FALSE(result.is_ok()) << part;
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
}

const char* const kHexSecret = "00ff00ff00ff00ff00ff00ff00ff00ff";
const std::string kBytesOfSecret("\0\xff\0\xff\0\xff\0\xff\0\xff\0\xff\0\xff\0\xff", 16);
const Values kPerseus = {{"PERSEUS_RANK", "1"},
                         {"PERSEUS_SIZE", "4"},
                         {"PERSEUS_RENDEZVOUS", "[::1]:4711"},
                         {"PERSEUS_SECRET", kHexSecret}};
const Values kTorchrun = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
const Values kSrun = {{"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_STEP_NODELIST", "gpu[007-009,12],cpu1"},
                      {"SLURM_JOB_ID", "1234"},
                      {"SLURM_STEP_ID", "0"}};
const Values kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}};

TEST(LaunchEnvironment, NothingSetIsAWorldOfOne) {
  const auto result = read({});
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result.value().kind, Kind::kSingle);
  EXPECT_EQ(result.value().size, 1);
}

TEST(LaunchEnvironment, ReadsPerseusrunsVariables) {
  const auto result = read(kPerseus);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(result.value().kind, Kind::kRendezvous);
  EXPECT_EQ(result.value().rank, 1);
  EXPECT_EQ(result.value().size, 4);
  EXPECT_EQ(result.value().rendezvous[0].host, "::1");
  EXPECT_EQ(result.value().rendezvous[0].port, 4711);
  EXPECT_EQ(result.value().secret, kBytesOfSecret);
  EXPECT_FALSE(result.value().serves);
}

TEST(LaunchEnvironment, TakesHorovodsRankAndSizeOnlyWithARendezvous) {
  const Values ranks = {{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}};
  EXPECT_EQ(read(ranks).value().kind, Kind::kSingle);
  const auto result =
      read(with(ranks, {{"PERSEUS_RENDEZVOUS", "h:1"}, {"PERSEUS_SECRET", kHexSecret}}));
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(result.value().rank, 1);
  EXPECT_EQ(result.value().size, 2);
}

TEST(LaunchEnvironment, NamesTheMalformedVariable) {
  expect_complaint(with(kPerseus, {{"PERSEUS_RANK", "abc"}}), "PERSEUS_RANK='abc'");
  expect_complaint(with(kPerseus, {{"PERSEUS_RANK", "1x"}}), "PERSEUS_RANK='1x'");
  expect_complaint(with(kPerseus, {{"PERSEUS_RANK", "-1"}}), "PERSEUS_RANK='-1'");
  expect_complaint(with(kPerseus, {{"PERSEUS_RANK", "4"}}), "PERSEUS_RANK=4");
  expect_complaint(with(kPerseus, {{"PERSEUS_SIZE", "0"}}), "PERSEUS_SIZE='0'");
  expect_complaint(with(kPerseus, {{"PERSEUS_SIZE", "99999999999999"}}), "PERSEUS_SIZE=");
  expect_complaint(with(kPerseus, {{"PERSEUS_RENDEZVOUS", "host"}}), "PERSEUS_RENDEZVOUS");
  expect_complaint(with(kPerseus, {{"PERSEUS_SECRET", "xyz"}}), "PERSEUS_SECRET");
  expect_complaint(with(kTorchrun, {{"RANK", "two"}}), "RANK='two'");
  expect_complaint(with(kTorchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT='65535'");
  expect_complaint(with(kTorchrun, {{"PERSEUS_MASTER_PORT", "0"}}), "PERSEUS_MASTER_PORT='0'");
  expect_complaint(with(kSrun, {{"SLURM_NTASKS", "3"}}), "SLURM_PROCID=3");
  expect_complaint(with(kSrun, {{"SLURM_STEP_NODELIST", "gpu["}}), "SLURM_STEP_NODELIST");
  expect_complaint(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "9"}}), "OMPI_COMM_WORLD_RANK=9");
}

TEST(LaunchEnvironment, NamesTheMissingVariable) {
  for (const char* name :
       {"PERSEUS_RANK", "PERSEUS_SIZE", "PERSEUS_RENDEZVOUS", "PERSEUS_SECRET"}) {
    expect_complaint(without(kPerseus, name), std::string(name) + " is not set");
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    expect_complaint(without(kTorchrun, name), std::string(name) + " is not set");
  }
  expect_complaint(without(kSrun, "SLURM_NTASKS"), "SLURM_NTASKS is not set");
  expect_complaint(without(kSrun, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set");
  expect_complaint(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set");
}

TEST(LaunchEnvironment, AShortSecretIsRefused) {
  const std::string fifteen_bytes(30, 'a');
  for (const Values& launched : {kPerseus, kTorchrun, kSrun}) {
    expect_complaint(with(launched, {{"PERSEUS_SECRET", fifteen_bytes}}),
                     "PERSEUS_SECRET has 15 bytes; it must have at least 16 (32 hexadecimal "
                     "digits)");
    EXPECT_TRUE(read(with(launched, {{"PERSEUS_SECRET", fifteen_bytes + "aa"}})).is_ok());
  }
}

TEST(LaunchEnvironment, TheSecretIsNotRepeatedInErrors) {
  const auto result = read(with(kPerseus, {{"PERSEUS_SECRET", "hunter2"}}));
  EXPECT_EQ(result.status().message().find("hunter2"), std::string::npos);
}

TEST(LaunchEnvironment, UnderTorchrunRankZeroServesBesideTorchrunsStore) {
  const auto zero = read(kTorchrun);
  ASSERT_TRUE(zero.is_ok()) << zero.status().message();
  EXPECT_EQ(zero.value().kind, Kind::kRendezvous);
  EXPECT_TRUE(zero.value().serves);
  EXPECT_EQ(zero.value().rendezvous[0].host, "node7");
  std::vector<int> ports;
  for (const HostPort& where : zero.value().rendezvous) {
    EXPECT_EQ(where.host, "node7");
    ports.push_back(where.port);
  }
  EXPECT_EQ(ports, (std::vector<int>{29502, 29504, 29506, 29508}));
  const auto high = read(with(kTorchrun, {{"MASTER_PORT", "65533"}}));
  ASSERT_EQ(high.value().rendezvous.size(), 1U);
  EXPECT_EQ(high.value().rendezvous[0].port, 65535);
  const auto one = read(with(kTorchrun, {{"RANK", "1"}}));
  EXPECT_FALSE(one.value().serves);
  EXPECT_EQ(one.value().secret, zero.value().secret);
  const auto chosen = read(with(kTorchrun, {{"PERSEUS_MASTER_PORT", "7"}}));
  ASSERT_EQ(chosen.value().rendezvous.size(), 1U);
  EXPECT_EQ(chosen.value().rendezvous[0].port, 7);
}

TEST(LaunchEnvironment, JobsOfTorchrunThatWereGivenOneSecretDoNotMeet) {
  const Values given = with(kTorchrun, {{"PERSEUS_SECRET", kHexSecret}});
  EXPECT_EQ(read(given).value().secret, read(with(given, {{"RANK", "1"}})).value().secret);
  EXPECT_NE(read(given).value().secret,
            read(with(given, {{"MASTER_PORT", "29502"}})).value().secret);
}

TEST(LaunchEnvironment, OnOneHostRanksMeetOverLoopbackUnderASecretYetToBeMade) {
  for (const Values& one_host : {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}}),
                                 with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}})}) {
    const auto result = read(one_host);
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    EXPECT_EQ(result.value().rendezvous[0].host, "127.0.0.1");
    EXPECT_TRUE(result.value().needs_local_secret);
    const auto given =
        read(with(one_host, {{"PERSEUS_SECRET", kHexSecret}, {"PERSEUS_MASTER_PORT", "7"}}));
    EXPECT_EQ(given.value().secret, kBytesOfSecret);
    EXPECT_FALSE(given.value().needs_local_secret);
  }
  for (const Values& hosts : {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "1"}}),
                              with(kSrun, {{"SLURM_STEP_NUM_NODES", "2"}})}) {
    EXPECT_NE(read(hosts).value().rendezvous[0].host, "127.0.0.1");
    EXPECT_FALSE(read(hosts).value().needs_local_secret);
  }
}

TEST(LaunchEnvironment, OnlyASecretDerivedForSeveralHostsCanBeGuessed) {
  const Values secret = {{"PERSEUS_SECRET", kHexSecret}};
  EXPECT_TRUE(read(kTorchrun).value().has_guessable_secret);
  EXPECT_TRUE(read(kSrun).value().has_guessable_secret);
  for (const Values& launch : {with(kTorchrun, secret), with(kSrun, secret), kPerseus,
                               with(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}}),
                               with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}})}) {
    EXPECT_FALSE(read(launch).value().has_guessable_secret);
  }
}

TEST(LaunchEnvironment, UnderMpiTheUserMaySetASecret) {
  EXPECT_EQ(read(kOpenMpi).value().secret, "");
  EXPECT_EQ(read(with(kOpenMpi, {{"PERSEUS_SECRET", kHexSecret}})).value().secret, kBytesOfSecret);
  EXPECT_EQ(read(with(kOpenMpi, {{"PERSEUS_SECRET", "77"}})).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(LaunchEnvironment, TheHostOfRankZeroMayBeNamed) {
  for (const Values& launch : {kTorchrun, kSrun}) {
    EXPECT_EQ(read(with(launch, {{"PERSEUS_MASTER_ADDR", "10.0.0.7"}})).value().rendezvous[0].host,
              "10.0.0.7");
  }
  EXPECT_EQ(read(with(kSrun, {{"PERSEUS_MASTER_PORT", "7"}})).value().rendezvous[0].port, 7);
}

TEST(LaunchEnvironment, ARestartUnderTorchrunHasAnotherSecret) {
  EXPECT_NE(read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).value().secret,
            read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "0"}})).value().secret);
}

TEST(LaunchEnvironment, UnderSrunRanksMeetOnTheFirstHost) {
  const auto three = read(kSrun);
  ASSERT_TRUE(three.is_ok()) << three.status().message();
  EXPECT_EQ(three.value().kind, Kind::kRendezvous);
  EXPECT_EQ(three.value().rendezvous[0].host, "gpu007");
  EXPECT_GE(three.value().rendezvous[0].port, 15000);
  EXPECT_LT(three.value().rendezvous[0].port, 31000);
  EXPECT_FALSE(three.value().serves);
  const auto zero = read(with(kSrun, {{"SLURM_PROCID", "0"}}));
  EXPECT_TRUE(zero.value().serves);
  EXPECT_EQ(zero.value().secret, three.value().secret);
  EXPECT_EQ(zero.value().rendezvous[0].port, three.value().rendezvous[0].port);
  EXPECT_NE(read(with(kSrun, {{"SLURM_STEP_ID", "1"}})).value().secret, three.value().secret);
}

TEST(LaunchEnvironment, ABatchScriptOfSlurmIsAWorldOfOne) {
  EXPECT_EQ(read(without(kSrun, "SLURM_STEP_NODELIST")).value().kind, Kind::kSingle);
}

TEST(LaunchEnvironment, MpiLaunchersAreKnownByTheirVariables) {
  EXPECT_EQ(read(kOpenMpi).value().kind, Kind::kMpi);
  EXPECT_EQ(read(kOpenMpi).value().rank, 2);
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).value().kind, Kind::kMpi);
  EXPECT_EQ(read({{"PMIX_RANK", "0"}}).value().kind, Kind::kMpi);
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).value().kind, Kind::kSingle);
}

TEST(LaunchEnvironment, SrunsPmiVariablesWithoutAnMpiLibraryMeanSrun) {
  const Values pmi = with(kSrun, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}});
  EXPECT_EQ(read(pmi, true).value().kind, Kind::kMpi);
  EXPECT_EQ(read(pmi, false).value().source, "SLURM_PROCID");
}

TEST(LaunchEnvironment, SrunsOwnVariablesStandByShouldMpiNotKnowOfTheLaunch) {
  for (const Values& pmi :
       {Values{{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}, Values{{"PMIX_RANK", "3"}}}) {
    const auto result = read(with(kSrun, pmi));
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    EXPECT_EQ(result.value().kind, Kind::kMpi);
    ASSERT_NE(result.value().without_mpi, nullptr);
    EXPECT_EQ(result.value().without_mpi->kind, Kind::kRendezvous);
    EXPECT_EQ(result.value().without_mpi->size, 8);
  }
}

TEST(LaunchEnvironment, MpirunWithoutAnMpiLibraryIsNeverTakenForAnotherLaunch) {
  EXPECT_EQ(read(kOpenMpi, false).value().kind, Kind::kMpi);
}

TEST(LaunchEnvironment, ARankFollowsFromThePlaceOnItsHost) {
  const Values place = {{"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "h"},
                        {"MASTER_PORT", "29500"}};
  for (const char* node : {"NODE_RANK", "GROUP_RANK"}) {
    const auto result = read(with(place, {{node, "1"}}));
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    EXPECT_EQ(result.value().kind, Kind::kRendezvous);
    EXPECT_EQ(result.value().rank, 5);
    EXPECT_EQ(result.value().size, 8);
    EXPECT_EQ(result.value().source, kDerivedRank);
  }
  // On the first host, and on a single one, it follows from less.
  EXPECT_EQ(read(with(without(place, "LOCAL_WORLD_SIZE"), {{"NODE_RANK", "0"}})).value().rank, 1);
  EXPECT_EQ(read(with(place, {{"WORLD_SIZE", "4"}})).value().rank, 1);
  EXPECT_EQ(read(with(place, {{"RANK", "6"}, {"NODE_RANK", "0"}})).value().rank, 6);
}

TEST(LaunchEnvironment, ARankThatDoesNotFollowIsAnError) {
  const Values place = {{"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}};
  expect_complaint(place, "does not follow from them without NODE_RANK");
  expect_complaint(with(place, {{"NODE_RANK", "1"}}), "without LOCAL_WORLD_SIZE");
  expect_complaint(with(place, {{"NODE_RANK", "9"}, {"LOCAL_WORLD_SIZE", "4"}}),
                   "rank 37, which follows from LOCAL_RANK=1");
  expect_complaint(with(place, {{"NODE_RANK", "x"}}), "NODE_RANK='x'");
  expect_complaint(with(place, {{"LOCAL_RANK", "x"}}), "LOCAL_RANK='x'");
}

TEST(LaunchEnvironment, ASizeWithoutARankIsNoWorldOfOne) {
  expect_complaint({{"WORLD_SIZE", "2"}}, "RANK is not set, though WORLD_SIZE=2");
  expect_complaint({{"RANK", "1"}, {"MASTER_ADDR", "h"}}, "WORLD_SIZE is not set");
  for (const Values& alone : {Values{{"WORLD_SIZE", "1"}}, Values{{"WORLD_SIZE", "auto"}},
                              Values{{"RANK", "16"}}, Values{{"LOCAL_RANK", "1"}}}) {
    EXPECT_EQ(read(alone).value().kind, Kind::kSingle);
  }
  // A launcher knows better than what somebody has exported.
  EXPECT_EQ(read(with(kOpenMpi, {{"WORLD_SIZE", "7"}})).value().rank, 2);
}

TEST(PlaceInWorld, IsThePositionInTheList) {
  EXPECT_EQ(place_in_world({}, 3, 4).value(), 3);
  EXPECT_EQ(place_in_world({2, 0}, 0, 4).value(), 1);
  EXPECT_EQ(place_in_world({2, 0}, 2, 4).value(), 0);
  EXPECT_EQ(place_in_world({2, 0}, 3, 4).value(), -1);
}

TEST(PlaceInWorld, RefusesRanksOutOfRangeOrRepeated) {
  for (const auto& ranks : {std::vector<int>{0, 4}, {-1}, {1, 0, 1}}) {
    EXPECT_EQ(place_in_world(ranks, 0, 4).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_NE(place_in_world({1, 0, 1}, 0, 4).status().message().find("rank 1"), std::string::npos);
}

TEST(FirstSlurmHost, ReadsBracketsAndKeepsLeadingZeros) {
  EXPECT_EQ(first_slurm_host("node[01-04,7],gpu3").value(), "node01");
  EXPECT_EQ(first_slurm_host("gpu3,node[01-04]").value(), "gpu3");
  EXPECT_EQ(first_slurm_host("host").value(), "host");
  EXPECT_EQ(first_slurm_host("n[7]").value(), "n7");
  EXPECT_EQ(first_slurm_host("rack[2-3]n[08,10]-ib").value(), "rack2n08-ib");
}

TEST(FirstSlurmHost, RefusesWhatIsNoNodeList) {
  for (const char* bad : {"", ",", "n[", "n]", "n[]", "n[-3]", "n[a-b]"}) {
    EXPECT_EQ(first_slurm_host(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace perseus
