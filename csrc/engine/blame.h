// Which rank is to blame for the end of operations here, for the launcher: a rank that fails
// because another one ended must not be taken for the culprit, though it may well be the first to
// exit. Loop thread.
#pragma once

#include <string>
#include <vector>

#include "transport/topology.h"

namespace perseus {

class Blame {
 public:
  explicit Blame(const Topology& topology) : topology_(topology) {}

  // The rank whose end makes operations fail here; -1: none so far.
  int rank() const { return rank_; }
  // `has_left`: it ended in order, or told the others why; else it was lost.
  void put_on(int rank, bool has_left);

  // Tells the launcher, once.
  void tell_launcher();
  // An operation has ended because a rank did: the launcher is told, unless this rank itself is
  // shutting down.
  void operation_aborted() {
    if (!is_closing_) tell_launcher();
  }
  void begin_shutdown() { is_closing_ = true; }

 private:
  const Topology& topology_;
  int rank_ = -1;
  bool has_left_ = false;
  bool is_told_ = false;
  bool is_closing_ = false;
};

// Tells the launcher which ranks make up a world that has met anew: whatever was said of any of
// them before no longer holds.
void tell_launcher_who_met(const Topology& topology);

}  // namespace perseus
