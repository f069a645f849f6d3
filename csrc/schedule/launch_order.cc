#include "schedule/launch_order.h"

#include <algorithm>
#include <utility>

namespace perseus {

bool LaunchOrder::is_later(const Launch* a, const Launch* b) {
  if (a->urgency != b->urgency) return a->urgency < b->urgency;
  return a->age > b->age;
}

void LaunchOrder::add(Launch* launch) {
  launch->age = next_age_++;
  waiting_.push_back(launch);
  std::push_heap(waiting_.begin(), waiting_.end(), is_later);
}

std::span<const LaunchTurn> LaunchOrder::settle(uint64_t ended) {
  // `ended` is the least of all ranks' counts, so it is at most this rank's own.
  const size_t count = std::min<uint64_t>(std::max(ended, ended_) - ended_, under_way_.size());
  for (size_t i = 0; i < count; ++i) bytes_under_way_ -= under_way_[i].size;
  under_way_.erase(under_way_.begin(), under_way_.begin() + static_cast<std::ptrdiff_t>(count));
  ended_ += count;
  settled_.clear();
  while (!waiting_.empty()) {
    Launch* const first = waiting_.front();
    if (bytes_under_way_ > 0 && bytes_under_way_ + first->size > credit_bytes_) break;
    std::pop_heap(waiting_.begin(), waiting_.end(), is_later);
    waiting_.pop_back();
    first->number = next_number_++;
    bytes_under_way_ += first->size;
    under_way_.push_back({first->size, false});
    // The launch before it on its lane must have both halves settled by then.
    settle_lower_halves(next_number_ - std::min(next_number_, lanes_));
    settled_.push_back({first});
    if (first->has_halves) lower_halves_.push_back(first);
  }
  settle_lower_halves(next_number_);
  return settled_;
}

void LaunchOrder::settle_lower_halves(uint64_t before) {
  const auto end = std::ranges::find_if(
      lower_halves_, [before](const Launch* launch) { return launch->number >= before; });
  for (auto launch = lower_halves_.begin(); launch != end; ++launch) {
    settled_.push_back({*launch, /*is_lower=*/true});
  }
  lower_halves_.erase(lower_halves_.begin(), end);
}

void LaunchOrder::end(const Launch& launch) {
  under_way_[launch.number - ended_].has_ended_here = true;
  while (ended_here_ - ended_ < under_way_.size() &&
         under_way_[ended_here_ - ended_].has_ended_here) {
    ++ended_here_;
  }
}

std::vector<Launch*> LaunchOrder::cancel() { return std::exchange(waiting_, {}); }

}  // namespace perseus
