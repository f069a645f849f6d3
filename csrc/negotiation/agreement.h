// The result of a round in which the ranks of a process set agree; the same on all of them. It is
// all that the rooms above the negotiation need to know of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "negotiation/description.h"

namespace perseus {

// A name that all ranks know, and its description. Never changes: if the ranks agree on another
// description later, another KnownOperation takes its place.
struct KnownOperation {
  std::string key;
  Description description;
};

struct Agreement {
  struct Ready {
    uint32_t id = 0;
    int32_t priority = 0;  // the description's, copied so that sorting reads no other memory
    std::shared_ptr<const KnownOperation> known;
    // How many operations its set has agreed on, with this one: the same on all ranks, and never
    // again in the set. The set's owner counts.
    uint64_t sequence = 0;

    const std::string& key() const { return known->key; }
    const Description& description() const { return known->description; }
  };
  struct Failure {
    std::string key;
    std::string message;
    bool is_refused_here = false;  // this rank refused it, so nothing that it submitted fails
    // If it failed because a rank submitted another operation under the same name: which. See
    // Refusal.
    int32_t instead_set = -1;
    std::string instead_key;
  };
  struct Overdue {
    std::string key;
    std::vector<int32_t> waiting;  // the ranks that have waited long for it, ascending
  };
  uint64_t round = 0;
  // A logical clock (Lamport 1978): later than every agreement, in any set, that one of these ranks
  // had heard of when it cast its ballot. So agreements of sets with ranks in common have one
  // order.
  uint64_t time = 0;
  uint64_t launches_ended = 0;  // GPU launches that have ended on every rank; see LaunchOrder
  // The highest number that a rank had announced when it cast its ballot, in this round or before.
  uint64_t announced = 0;
  std::vector<Ready> ready;  // in the order in which they are to run
  // If a single operation is ready and every rank sent its input along: the inputs, by index. Else
  // empty.
  std::span<const std::byte> inputs;
  // The same, if every rank sent the sizes of its input along: see Attachment.
  std::span<const std::byte> sizes;
  std::vector<Failure> failures;
  std::vector<Overdue> overdue;  // a rank has waited long for these, and not all have them ready
  int32_t trial = -1;            // the tuner's trial that every rank has measured, or -1
  uint64_t slowest = 0;          // the largest result of that trial
  std::vector<int32_t> joined;   // ranks that take part without having submitted
  int32_t last_joined = -1;      // once all have joined, the rank that joined last; else -1

  void clear();  // keeps its memory
};

}  // namespace perseus
