// The tags that Perseus uses on its communicator. Each generation has its own, so that what a
// failed one left behind is not taken for the next's; 32767 is the largest tag that every MPI
// takes.
#pragma once

namespace perseus {

inline constexpr int kMpiGenerations = 16384;
constexpr int mpi_bootstrap_tag(int generation) { return generation % kMpiGenerations; }
constexpr int mpi_data_tag(int generation) {
  return kMpiGenerations + generation % kMpiGenerations;
}

}  // namespace perseus
