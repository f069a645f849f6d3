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

std::span<Launch* const> LaunchOrder::settle(uint64_t ended) {
  // No rank counts more than it has itself.
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
    settled_.push_back(first);
  }
  return settled_;
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
