// What the ranks of a process set have agreed on in a round; the same on all of them. All that the
// rooms above the negotiation need to know of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "negotiation/description.h"

namespace perseus {

// What all ranks know of a name. It never changes: what they later say otherwise is another one.
struct KnownOperation {
  std::string key;
  Description description;
};

// What a round ended in; the same on every rank.
struct Agreement {
  struct Ready {
    uint32_t id = 0;
    int32_t priority = 0;  // the description's; here, so that sorting reads no other memory
    std::shared_ptr<const KnownOperation> known;

    const std::string& key() const { return known->key; }
    const Description& description() const { return known->description; }
  };
  struct Failure {
    std::string key;
    std::string message;
    bool is_refused_here = false;  // this rank has nothing under way that fails with it
    // What a rank submitted under the same name instead, if that is why; see Refusal.
    int32_t instead_set = -1;
    std::string instead_key;
  };
  struct Overdue {
    std::string key;
    std::vector<int32_t> waiting;  // the ranks that have, ascending
  };
  uint64_t round = 0;
  // Later than that of every agreement that one of these ranks had heard of, in any set, when it
  // cast its ballot (Lamport 1978): so agreements of sets with ranks in common have one order.
  uint64_t time = 0;
  uint64_t launches_ended = 0;  // on every rank; see LaunchOrder
  std::vector<Ready> ready;     // in the order in which they are to run
  // Of the only one that is ready, every rank's input, by index; empty if they did not come along.
  std::span<const std::byte> inputs;
  std::vector<Failure> failures;
  std::vector<Overdue> overdue;  // not ready everywhere though a rank has waited long
  int32_t trial = -1;            // of the tuner: every rank has measured it
  uint64_t slowest = 0;          // and this is the largest result
  std::vector<int32_t> joined;   // ranks that take part without having submitted
  int32_t last_joined = -1;      // a rank when all have joined, else -1

  void clear();  // keeps the memory
};

}  // namespace perseus
