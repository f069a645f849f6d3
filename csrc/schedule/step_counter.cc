#include "schedule/step_counter.h"

#include <algorithm>

namespace perseus {
namespace {

// Operations without a name whose sizes keep changing have a new fingerprint each time.
constexpr size_t kMostFingerprints = 1 << 16;

}  // namespace

bool StepCounter::note(std::span<const uint64_t> fingerprints) {
  if (last_step_of_.size() > kMostFingerprints) last_step_of_.clear();
  const bool is_new =
      std::any_of(fingerprints.begin(), fingerprints.end(), [&](uint64_t fingerprint) {
        const auto last = last_step_of_.find(fingerprint);
        return last != last_step_of_.end() && last->second == step_;
      });
  if (is_new) ++step_;
  for (const uint64_t fingerprint : fingerprints) last_step_of_[fingerprint] = step_;
  return is_new;
}

}  // namespace perseus
