// The hosts of all ranks.
#pragma once

#include <string>
#include <vector>

#include "base/processors.h"

namespace perseus {

// Hosts are numbered in the order of their lowest rank.
struct Topology {
  int rank = 0;
  int size = 1;
  std::vector<int> host_of;  // host number of each rank
  std::vector<std::string> host_names;
  std::vector<int> launched;  // the number that the launcher gave to each rank
  // How many processors this rank has if the ranks of its machine share them evenly; at least 1.
  int processor_share = 1;

  // The last-level cache under which each rank's engine's thread always runs: ranks that have the
  // same number share it. Known for ranks of this host alone.
  static constexpr int kNotKnown = -1;
  std::vector<int> cache_of = {};
  Processors engine_processors = {};  // to bind this rank's engine's thread to; none: nothing

  // For messages: "rank 3 on host7", or "rank 3 (launched as rank 4) on host7".
  std::string name(int of_rank) const;

  // By rank: orders the ranks of a host among themselves. The launcher of an elastic job gives each
  // process a slot for its life, so that its local rank does not become another's while as many are
  // there. Without slots, they are in the order of their ranks.
  std::vector<int> slot_of = {};

  int local_rank() const { return local_rank_of(rank); }
  int local_rank_of(int of_rank) const;  // position among the ranks of its host
  int local_size() const;
  int cross_rank() const;  // position among the ranks with this local rank, in order of host
  int cross_size() const;
  bool is_homogeneous() const;  // every host has the same number of ranks
};

}  // namespace perseus
