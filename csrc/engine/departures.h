// The ranks that have shut down or ended, and why. Engine thread.
#pragma once

#include <map>
#include <string>

#include "state/control.h"
#include "state/process_set.h"
#include "transport/topology.h"

namespace perseus {

class Departures {
 public:
  explicit Departures(const Topology& topology) : topology_(topology) {}

  // Returns whether this rank had not heard of it before.
  bool add(const Leaving& leaving) { return by_rank_.emplace(leaving.rank, leaving).second; }
  // Sets why this rank itself is leaving; empty if it shuts down normally.
  void set_own_reason(const std::string& why) { own_reason_ = why; }

  bool contains(int rank) const { return by_rank_.contains(rank); }
  // Returns whether the rank has ended with an error.
  bool has_failed(int rank) const;
  const std::map<int, Leaving>& by_rank() const { return by_rank_; }

  // The news that other ranks are told about a rank that has left.
  Broken news_of(int rank) const;
  // The same for the first rank that stopped taking part in the set: it has left, or has closed the
  // set.
  Broken news_of_first(const ProcessSet& set) const;

 private:
  const Topology& topology_;
  std::map<int, Leaving> by_rank_;
  std::string own_reason_;
};

}  // namespace perseus
