// Which of the links that share a network card has the most urgent message to send. The card knows
// nothing of urgency, and serves all connections alike. Loop thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace perseus {

class Precedence {
 public:
  // Of who has nothing to send.
  static constexpr int32_t kNone = INT32_MIN;

  // Gives the place of one more link.
  size_t join() {
    urgency_.push_back(kNone);
    return urgency_.size() - 1;
  }
  void set(size_t place, int32_t urgency) {
    const int32_t before = urgency_[place];
    if (urgency == before) return;
    urgency_[place] = urgency;
    if (urgency > highest_) {
      highest_ = urgency;
    } else if (before == highest_) {
      highest_ = *std::max_element(urgency_.begin(), urgency_.end());
    }
  }
  int32_t highest() const { return highest_; }

 private:
  std::vector<int32_t> urgency_;
  int32_t highest_ = kNone;
};

}  // namespace perseus
