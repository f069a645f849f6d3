// Counts the training steps of a process set: one is over when a part of it comes again. A pure
// function of what was agreed, so every rank of the set counts alike. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace perseus {

class StepCounter {
 public:
  // Operations that were agreed on together; a fingerprint tells one from all others of a step.
  // Returns whether they begin a new step.
  bool note(std::span<const uint64_t> fingerprints);

  // The one that is under way, from 1 on.
  int64_t step() const { return step_; }

 private:
  int64_t step_ = 1;
  std::unordered_map<uint64_t, int64_t> last_step_of_;  // by fingerprint
};

}  // namespace perseus
