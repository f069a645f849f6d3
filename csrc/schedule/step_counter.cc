#include "schedule/step_counter.h"

#include <algorithm>

namespace perseus {
namespace {

// Operations of ever other sizes and of no name have ever other signs.
constexpr size_t kMostSigns = 1 << 16;

}  // namespace

bool StepCounter::note(std::span<const uint64_t> signs) {
  if (last_step_of_.size() > kMostSigns) last_step_of_.clear();
  const bool is_new = std::any_of(signs.begin(), signs.end(), [&](uint64_t sign) {
    const auto last = last_step_of_.find(sign);
    return last != last_step_of_.end() && last->second == step_;
  });
  if (is_new) ++step_;
  for (const uint64_t sign : signs) last_step_of_[sign] = step_;
  return is_new;
}

}  // namespace perseus
