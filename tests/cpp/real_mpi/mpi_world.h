// Shared by the tests under mpirun.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "base/settings.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/environment.h"
#include "mpi/mpi_library.h"
#include "mpi/mpi_process.h"
#include "transport/thread_world.h"

namespace perseus {

inline Settings settings_of_environment() {
  auto settings = Settings::from_environment();
  EXPECT_TRUE(settings.is_ok()) << settings.status().message();
  return std::move(settings).value();
}

// The n-th bootstrap of this process, as the n-th init would make it.
inline Result<std::unique_ptr<Bootstrap>> next_bootstrap(
    const std::vector<int>& ranks = {}, Settings settings = settings_of_environment()) {
  static int generation = 0;
  return make_bootstrap(settings, {ranks, generation++, {}});
}

inline MpiProcess this_process() {
  auto mpi = load_mpi(settings_of_environment().mpi_library);
  EXPECT_TRUE(mpi.is_ok()) << mpi.status().message();
  auto process = join_mpi(*mpi.value(), std::chrono::seconds(20));
  EXPECT_TRUE(process.is_ok()) << process.status().message();
  return process.value();
}

// A WorldMaker whose ranks are the first `size` of the processes that mpirun started.
inline std::vector<Status> run_world_of_processes(int size, const Settings& settings,
                                                  const RankBody& body) {
  std::vector<Status> outcomes(size);
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto bootstrap = next_bootstrap(ranks);
  const int rank = this_process().rank;
  if (!bootstrap.is_ok()) {
    outcomes[rank % size] = bootstrap.status();
  } else if (rank < size) {
    ThreadRendezvous no_threads(size);
    outcomes[rank] = run_rank(no_threads, *bootstrap.value(), settings, body);
  }
  return outcomes;
}

}  // namespace perseus
