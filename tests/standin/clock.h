// Vector clocks (Mattern 1989), which tell what certainly happened before. The host and each stream
// are components, whose time is the number of their pieces of work so far.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace perseus::standin {

inline constexpr size_t kHostComponent = 0;  // streams count from 1

class Clock {
 public:
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }

  uint64_t advance(size_t component) {
    if (times_.size() <= component) times_.resize(component + 1);
    return ++times_[component];
  }

  bool covers(size_t component, uint64_t time) const {
    return component < times_.size() && times_[component] >= time;
  }

 private:
  std::vector<uint64_t> times_;
};

}  // namespace perseus::standin
