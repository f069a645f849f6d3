// Cuts libFuzzer's input into numbers and pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace perseus::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  // Returns zero when nothing is left.
  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T>);
    T value{};
    const auto from = take(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), from.size());
    return value;
  }
  // A piece that is preceded by its length, of at most 64 KiB.
  std::span<const std::byte> piece() { return std::as_bytes(take(number<uint16_t>())); }
  std::span<const std::byte> remainder() { return std::as_bytes(take(rest_.size())); }
  std::string text() { return as_text(piece()); }

  static std::string as_text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const uint8_t> take(size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

  std::span<const uint8_t> rest_;
};

// Ends the run as a finding.
#define MUST(condition)                                                             \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: must be: %s\n", __FILE__, __LINE__, #condition); \
      __builtin_trap();                                                             \
    }                                                                               \
  } while (0)

}  // namespace perseus::fuzz
