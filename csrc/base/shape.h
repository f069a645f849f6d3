// The extents of a tensor's dimensions. Up to kFew of them are stored in the object itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace perseus {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    for (int64_t extent : extents) push_back(extent);
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return size_ <= kFew ? few_.data() : many_.data(); }
  int64_t* data() { return size_ <= kFew ? few_.data() : many_.data(); }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t operator[](size_t dimension) const { return data()[dimension]; }
  int64_t& operator[](size_t dimension) { return data()[dimension]; }
  int64_t front() const { return data()[0]; }

  void push_back(int64_t extent) {
    if (size_ < kFew) {
      few_[size_] = extent;
    } else {
      if (size_ == kFew) many_.assign(few_.begin(), few_.end());
      many_.push_back(extent);
    }
    ++size_;
  }
  void clear() { size_ = 0; }

  bool operator==(const Shape& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  static constexpr size_t kFew = 6;

  size_t size_ = 0;
  std::array<int64_t, kFew> few_{};
  std::vector<int64_t> many_;  // all extents, if there are more than kFew
};

}  // namespace perseus
