// Random elements of any type, read and written as float64, as a reference for tests of arithmetic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/types.h"

namespace perseus {

inline constexpr DataType kAllTypes[] = {DataType::kUint8,   DataType::kInt8,    DataType::kUint16,
                                         DataType::kInt16,   DataType::kInt32,   DataType::kInt64,
                                         DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                                         DataType::kBool,    DataType::kBfloat16};
inline constexpr DataType kFloatingTypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                              DataType::kFloat32, DataType::kFloat64};

// The precision in bits, smallest normal exponent and largest exponent of a binary format.
struct FloatFormat {
  int precision, smallest, largest;
};
inline FloatFormat format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {11, -14, 15};
    case DataType::kBfloat16: return {8, -126, 127};
    case DataType::kFloat32: return {24, -126, 127};
    default: return {53, -1022, 1023};
  }
}

// Rounds `value` to the type, to nearest even, by the definition of the format. Integers and bool
// are only converted to the type's width.
inline double round_to(DataType type, double value) {
  if (type == DataType::kFloat64 || !std::isfinite(value) || value == 0) return value;
  if (is_floating(type)) {
    const FloatFormat format = format_of(type);
    const int exponent = std::max(std::ilogb(value), format.smallest);
    const int shift = format.precision - 1 - exponent;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift);
    if (rounded != 0 && std::ilogb(rounded) > format.largest) return std::copysign(INFINITY, value);
    return rounded;
  }
  return value;
}

// The value of a 16-bit float, by the definition of the format.
inline double decode(DataType type, uint16_t bits) {
  const int fraction_bits = format_of(type).precision - 1;
  const int exponent_bits = 15 - fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// The bits of a value that the 16-bit type holds exactly.
inline uint16_t encode(DataType type, double value) {
  const FloatFormat format = format_of(type);
  const int fraction_bits = format.precision - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity = ((1 << (15 - fraction_bits)) - 1) << fraction_bits;
  if (std::isnan(value)) return infinity | (1 << (fraction_bits - 1));
  value = std::abs(value);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), format.smallest);
  const auto scaled = static_cast<uint32_t>(std::ldexp(value, fraction_bits - exponent));
  if (scaled < (1u << fraction_bits)) return sign | scaled;
  return sign | ((exponent - format.smallest + 1) << fraction_bits) |
         (scaled & ((1 << fraction_bits) - 1));
}

// `size` elements that begin `offset` elements into their memory, with guard bytes on both sides.
// Integers are small enough that no sum or product of two wraps; floats are of many magnitudes.
class Elements {
 public:
  Elements(DataType type, size_t size, uint64_t seed, size_t offset = 0)
      : type_(type),
        size_(size),
        begin_(kGuard + offset * size_of(type)),
        memory_(begin_ + size * size_of(type) + kGuard, std::byte{0x5a}) {
    std::mt19937_64 random(seed * 7919 + static_cast<int>(type));
    for (size_t i = 0; i < size; ++i) set(i, draw(random));
  }

  // Not written to yet.
  Elements(DataType type, size_t size)
      : type_(type),
        size_(size),
        begin_(kGuard),
        memory_(begin_ + size * size_of(type) + kGuard, std::byte{0x5a}) {}

  void* data() { return memory_.data() + begin_; }
  const void* data() const { return memory_.data() + begin_; }
  size_t size() const { return size_; }
  std::vector<std::byte> bytes() const {
    return {memory_.begin() + begin_, memory_.end() - kGuard};
  }

  double operator[](size_t i) const {
    switch (type_) {
      case DataType::kUint8: return get<uint8_t>(i);
      case DataType::kInt8: return get<int8_t>(i);
      case DataType::kUint16: return get<uint16_t>(i);
      case DataType::kInt16: return get<int16_t>(i);
      case DataType::kInt32: return get<int32_t>(i);
      case DataType::kInt64: return static_cast<double>(get<int64_t>(i));
      case DataType::kBool: return get<uint8_t>(i);
      case DataType::kFloat32: return get<float>(i);
      case DataType::kFloat64: return get<double>(i);
      default: return decode(type_, get<uint16_t>(i));
    }
  }

  void set(size_t i, double value) {
    switch (type_) {
      case DataType::kUint8: return put(i, static_cast<uint8_t>(value));
      case DataType::kInt8: return put(i, static_cast<int8_t>(value));
      case DataType::kUint16: return put(i, static_cast<uint16_t>(value));
      case DataType::kInt16: return put(i, static_cast<int16_t>(value));
      case DataType::kInt32: return put(i, static_cast<int32_t>(value));
      case DataType::kInt64: return put(i, static_cast<int64_t>(value));
      case DataType::kBool: return put(i, static_cast<uint8_t>(value != 0));
      case DataType::kFloat32: return put(i, static_cast<float>(value));
      case DataType::kFloat64: return put(i, value);
      default: return put(i, encode(type_, value));
    }
  }

  bool guards_intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory_[begin_ - 1 - i] != std::byte{0x5a}) return false;
      if (memory_[memory_.size() - 1 - i] != std::byte{0x5a}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;

  double draw(std::mt19937_64& random) const {
    const auto small = static_cast<int>(random() % 12);
    switch (type_) {
      case DataType::kBool: return small % 2;
      case DataType::kUint8:
      case DataType::kUint16: return small;
      case DataType::kInt8:
      case DataType::kInt16: return small - 6;
      case DataType::kInt32:
      case DataType::kInt64: return static_cast<double>(random() % 20001) - 10000;
      default: {
        const double unit = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-63;
        return round_to(type_, std::ldexp(unit, static_cast<int>(random() % 12) - 6));
      }
    }
  }

  template <typename T>
  T get(size_t i) const {
    T value;
    std::memcpy(&value, memory_.data() + begin_ + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void put(size_t i, T value) {
    std::memcpy(memory_.data() + begin_ + i * sizeof(T), &value, sizeof(T));
  }

  DataType type_;
  size_t size_, begin_;
  std::vector<std::byte> memory_;
};

}  // namespace perseus
