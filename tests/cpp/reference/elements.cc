#include "reference/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace perseus {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kUnwritten{0x5a};

// The bits of a value that the 16-bit type holds exactly.
uint16_t encode(DataType type, double value) {
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

template <typename T>
T get(const std::byte* first, size_t i) {
  T value;
  std::memcpy(&value, first + i * sizeof(T), sizeof(T));
  return value;
}

double read(DataType type, const std::byte* first, size_t i) {
  switch (type) {
    case DataType::kUint8: return get<uint8_t>(first, i);
    case DataType::kInt8: return get<int8_t>(first, i);
    case DataType::kUint16: return get<uint16_t>(first, i);
    case DataType::kInt16: return get<int16_t>(first, i);
    case DataType::kInt32: return get<int32_t>(first, i);
    case DataType::kInt64: return static_cast<double>(get<int64_t>(first, i));
    case DataType::kBool: return get<uint8_t>(first, i);
    case DataType::kFloat32: return get<float>(first, i);
    case DataType::kFloat64: return get<double>(first, i);
    default: return decode(type, get<uint16_t>(first, i));
  }
}

template <typename T>
void put(std::byte* first, size_t i, T value) {
  std::memcpy(first + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

FloatFormat format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {11, -14, 15};
    case DataType::kBfloat16: return {8, -126, 127};
    case DataType::kFloat32: return {24, -126, 127};
    default: return {53, -1022, 1023};
  }
}

double decode(DataType type, uint16_t bits) {
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

double round_to(DataType type, double value) {
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

Elements::Elements(DataType type, size_t size, uint64_t seed, size_t offset)
    : type_(type),
      size_(size),
      begin_(kGuard + offset * size_of(type)),
      memory_(begin_ + size * size_of(type) + kGuard, kUnwritten) {
  std::mt19937_64 random(seed * 7919 + static_cast<int>(type));
  for (size_t i = 0; i < size; ++i) set(i, draw(random));
}

Elements::Elements(DataType type, size_t size)
    : type_(type),
      size_(size),
      begin_(kGuard),
      memory_(begin_ + size * size_of(type) + kGuard, kUnwritten) {}

std::string_view Elements::bytes() const {
  return {reinterpret_cast<const char*>(data()), size_ * size_of(type_)};
}

double Elements::operator[](size_t i) const { return read(type_, memory_.data() + begin_, i); }

void Elements::set(size_t i, double value) {
  std::byte* first = memory_.data() + begin_;
  switch (type_) {
    case DataType::kUint8: return put(first, i, static_cast<uint8_t>(value));
    case DataType::kInt8: return put(first, i, static_cast<int8_t>(value));
    case DataType::kUint16: return put(first, i, static_cast<uint16_t>(value));
    case DataType::kInt16: return put(first, i, static_cast<int16_t>(value));
    case DataType::kInt32: return put(first, i, static_cast<int32_t>(value));
    case DataType::kInt64: return put(first, i, static_cast<int64_t>(value));
    case DataType::kBool: return put(first, i, static_cast<uint8_t>(value != 0));
    case DataType::kFloat32: return put(first, i, static_cast<float>(value));
    case DataType::kFloat64: return put(first, i, value);
    default: return put(first, i, encode(type_, value));
  }
}

std::vector<double> Elements::values() const {
  // Only what the C library reads is seen by sanitizers here.
  std::vector<std::byte> copy(size_ * size_of(type_));
  if (!copy.empty()) std::memcpy(copy.data(), data(), copy.size());
  std::vector<double> values(size_);
  for (size_t i = 0; i < size_; ++i) values[i] = read(type_, copy.data(), i);
  return values;
}

bool Elements::guards_intact() const {
  const std::byte* memory = memory_.data();
  const auto is_unwritten = [](std::byte byte) { return byte == kUnwritten; };
  return std::all_of(memory + begin_ - kGuard, memory + begin_, is_unwritten) &&
         std::all_of(memory + memory_.size() - kGuard, memory + memory_.size(), is_unwritten);
}

double Elements::draw(std::mt19937_64& random) const {
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

}  // namespace perseus
