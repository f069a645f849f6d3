// The tags that Perseus uses on its communicator. Each generation has its own, so that messages
// that a failed generation left behind are not taken for those of the next. 32767 is the largest
// tag that every MPI accepts.
#pragma once

namespace perseus {

inline constexpr int kMpiGenerations = 16384;
constexpr int mpi_bootstrap_tag(int generation) { return generation % kMpiGenerations; }
constexpr int mpi_data_tag(int generation) {
  return kMpiGenerations + generation % kMpiGenerations;
}

}  // namespace perseus
