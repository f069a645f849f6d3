// Counts the training steps of a process set: a step is over when one of its operations comes
// again. A pure function of what was agreed, so every rank of the set counts the same. One thread
// at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace perseus {

class StepCounter {
 public:
  // Takes operations that were agreed on together. A fingerprint tells an operation from all others
  // of a step. Returns whether they begin a new step.
  bool note(std::span<const uint64_t> fingerprints);

  // The step that is under way; the first is 1.
  int64_t step() const { return step_; }

 private:
  int64_t step_ = 1;
  std::unordered_map<uint64_t, int64_t> last_step_of_;  // by fingerprint
};

}  // namespace perseus
