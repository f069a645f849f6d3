#include "bootstrap/launchers.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace perseus {
namespace {

struct Value {
  std::string text;
  int age = 1;
};
using DatedValues = std::map<std::string, Value>;

DatedValues at(int age, std::map<std::string, std::string> texts) {
  DatedValues values;
  for (const auto& [name, text] : texts) values[name] = {text, age};
  return values;
}

// What a process finds that the first launcher has started below the second, and so on. An outer
// launcher's variables are there as long as no inner one sets them.
template <typename... More>
DatedValues below(DatedValues inner, const More&... outer) {
  for (const DatedValues& one : {outer...}) inner.insert(one.begin(), one.end());
  return inner;
}

DatedValues perseusrun(int age, int rank, int size) {
  const std::string r = std::to_string(rank), s = std::to_string(size);
  return at(age, {{"PERSEUS_RANK", r},
                  {"PERSEUS_SIZE", s},
                  {"PERSEUS_RENDEZVOUS", "h:" + std::to_string(4000 + age)},
                  {"RANK", r},
                  {"WORLD_SIZE", s},
                  {"LOCAL_RANK", r}});
}
DatedValues torchrun(int age, int rank, int size) {
  return at(age, {{"RANK", std::to_string(rank)},
                  {"WORLD_SIZE", std::to_string(size)},
                  {"LOCAL_RANK", std::to_string(rank)},
                  {"TORCHELASTIC_RUN_ID", "run " + std::to_string(age)}});
}
DatedValues openmpi(int age, int rank, int size) {
  return at(age, {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                  {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
                  {"PMIX_RANK", std::to_string(rank)},
                  {"PMIX_NAMESPACE", "job " + std::to_string(age)}});
}
DatedValues mpich(int age, int rank, int size) {
  return at(age, {{"PMI_RANK", std::to_string(rank)}, {"PMI_SIZE", std::to_string(size)}});
}
DatedValues srun(int age, int rank, int size) {
  return at(age, {{"SLURM_PROCID", std::to_string(rank)},
                  {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
                  {"SLURM_STEP_NODELIST", "n[1-2]"},
                  {"SLURM_STEP_ID", std::to_string(age)}});
}
DatedValues srun_pmi2(int age, int rank, int size) {
  return below(srun(age, rank, size), mpich(age, rank, size));
}
DatedValues srun_pmix(int age, int rank, int size) {
  return below(srun(age, rank, size), at(age, {{"PMIX_RANK", std::to_string(rank)},
                                               {"PMIX_NAMESPACE", "slurm.pmix.1.0"}}));
}
// What a program or a wrapper sets for torch.distributed.
DatedValues exported(int age, int rank, int size) {
  return at(age, {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size)}});
}

Result<Claim> chosen(const DatedValues& values) {
  Variables variables;
  variables.get = [&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.text.c_str();
  };
  variables.age = [&](const char* name) { return values.at(name).age; };
  const auto claims = find_claims(variables);
  EXPECT_FALSE(claims.empty());
  return innermost(variables, claims);
}

void expect(const DatedValues& values, Launcher launcher, int rank, int size) {
  const Result<Claim> claim = chosen(values);
  ASSERT_TRUE(claim.is_ok()) << claim.status().message();
  EXPECT_EQ(claim.value().launcher, launcher) << claim.value().name;
  EXPECT_EQ(claim.value().rank, rank);
  EXPECT_EQ(claim.value().size, size);
}

TEST(Launchers, EachIsKnownAlone) {
  expect(perseusrun(1, 1, 2), Launcher::kPerseusrun, 1, 2);
  expect(torchrun(1, 1, 2), Launcher::kTorchrun, 1, 2);
  expect(openmpi(1, 1, 2), Launcher::kOpenMpi, 1, 2);
  expect(mpich(1, 1, 2), Launcher::kPmi, 1, 2);
  expect(srun(1, 1, 2), Launcher::kSrun, 1, 2);
  expect(srun_pmi2(1, 1, 2), Launcher::kPmi, 1, 2);
  expect(srun_pmix(1, 1, 2), Launcher::kPmix, 1, 0);
}

TEST(Launchers, TorchrunIsInsideOfWhatStartedIt) {
  // One rank on each host that the outer launcher gives, or several, or as many as there are hosts.
  for (const auto& [rank, size] : {std::pair{0, 1}, {3, 8}, {1, 2}, {0, 2}}) {
    for (const DatedValues& outer : {openmpi(2, 1, 2), mpich(2, 1, 2), srun(2, 1, 2),
                                     srun_pmi2(2, 1, 2), srun_pmix(2, 1, 2), perseusrun(2, 1, 2)}) {
      expect(below(torchrun(1, rank, size), outer), Launcher::kTorchrun, rank, size);
    }
  }
}

TEST(Launchers, WhateverATorchrunsRankStartsIsInsideOfTorchrun) {
  for (const int rank : {0, 1}) {
    const DatedValues outer = torchrun(3, 1, 2);
    expect(below(perseusrun(1, rank, 2), outer), Launcher::kPerseusrun, rank, 2);
    expect(below(openmpi(1, rank, 2), outer), Launcher::kOpenMpi, rank, 2);
    expect(below(mpich(1, rank, 2), outer), Launcher::kPmi, rank, 2);
    expect(below(srun(1, rank, 2), outer), Launcher::kSrun, rank, 2);
  }
}

TEST(Launchers, PerseusrunAndMpirunAreInsideOfWhatStartedThem) {
  for (const DatedValues& outer : {openmpi(3, 1, 4), mpich(3, 1, 4), srun_pmi2(3, 1, 4)}) {
    expect(below(perseusrun(1, 0, 2), outer), Launcher::kPerseusrun, 0, 2);
  }
  expect(below(openmpi(1, 0, 2), mpich(3, 1, 4)), Launcher::kOpenMpi, 0, 2);
  expect(below(mpich(1, 0, 2), openmpi(3, 1, 4)), Launcher::kPmi, 0, 2);
  expect(below(mpich(1, 0, 2), perseusrun(3, 1, 4)), Launcher::kPmi, 0, 2);
  // `perseusrun --mpi`: the agents that mpirun starts set what torchrun would set.
  expect(below(exported(1, 1, 2), openmpi(2, 1, 2)), Launcher::kOpenMpi, 1, 2);
}

TEST(Launchers, SlurmsVariablesOfAnMpiLaunchersOwnDaemonsAreNotTheRanks) {
  // MPICH's launcher starts a proxy on each of 8 nodes by srun, and they start 64 ranks.
  expect(below(mpich(1, 3, 64), srun(2, 3, 8)), Launcher::kPmi, 3, 64);
  expect(below(openmpi(1, 3, 64), srun_pmi2(2, 3, 8)), Launcher::kOpenMpi, 3, 64);
}

TEST(Launchers, WhatAProgramRepeatsForTorchIsNoLauncher) {
  for (const int age : {0, 1, 2}) {
    expect(below(exported(age, 1, 2), openmpi(1, 1, 2)), Launcher::kOpenMpi, 1, 2);
    expect(below(exported(age, 1, 2), mpich(1, 1, 2)), Launcher::kPmi, 1, 2);
  }
  // srun's ranks meet where the program says.
  expect(below(exported(0, 1, 2), srun(1, 1, 2)), Launcher::kTorchrun, 1, 2);
  // perseusrun in a rank of torchrun's, whose run id is older.
  expect(below(perseusrun(1, 1, 2), torchrun(3, 1, 2)), Launcher::kPerseusrun, 1, 2);
}

TEST(Launchers, WhatAProgramItselfHasSetIsTheInnermost) {
  expect(below(exported(0, 1, 2), openmpi(1, 3, 8)), Launcher::kTorchrun, 1, 2);
  const DatedValues alone = at(0, {{"PERSEUS_RANK", "0"}, {"PERSEUS_SIZE", "1"}});
  expect(below(alone, torchrun(1, 1, 2)), Launcher::kPerseusrun, 0, 1);
  expect(below(alone, perseusrun(1, 1, 2)), Launcher::kPerseusrun, 0, 1);
}

TEST(Launchers, OldVariablesOfASurroundingsDoNotCount) {
  // A pod's own, in which somebody calls mpirun.
  expect(below(openmpi(1, 3, 8), exported(4, 0, 1)), Launcher::kOpenMpi, 3, 8);
  expect(below(torchrun(1, 1, 2), at(3, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})),
         Launcher::kTorchrun, 1, 2);
}

TEST(Launchers, AContradictionIsAnErrorThatNamesBoth) {
  const Result<Claim> claim = chosen(below(torchrun(1, 1, 2), openmpi(1, 0, 4)));
  ASSERT_FALSE(claim.is_ok());
  EXPECT_EQ(claim.status().code(), StatusCode::kInvalidArgument);
  for (const char* part :
       {"rank 0 of 4 by Open MPI (OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE)",
        "rank 1 of 2 by torchrun (RANK and WORLD_SIZE)", "unset the variables"}) {
    EXPECT_NE(claim.status().message().find(part), std::string::npos) << claim.status().message();
  }
  EXPECT_FALSE(chosen(below(perseusrun(1, 0, 2), openmpi(1, 1, 2))).is_ok());
  EXPECT_FALSE(chosen(below(torchrun(1, 0, 2), srun(1, 0, 4))).is_ok());
  EXPECT_FALSE(chosen(below(mpich(1, 0, 2), srun(1, 1, 2))).is_ok());
}

TEST(Launchers, MalformedVariablesOfAnOuterLauncherDoNotMatter) {
  const DatedValues broken = at(3, {{"RANK", "first"}, {"WORLD_SIZE", "2"}});
  expect(below(openmpi(1, 1, 2), broken), Launcher::kOpenMpi, 1, 2);
  EXPECT_EQ(chosen(broken).value().rank, -1);
}

}  // namespace
}  // namespace perseus
