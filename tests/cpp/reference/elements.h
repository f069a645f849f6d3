// Random elements of any type, read and written as float64, as a reference for tests of arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
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
FloatFormat format_of(DataType type);

// Rounds `value` to the type, to nearest even, by the definition of the format. Integers and bool
// are only converted to the type's width.
double round_to(DataType type, double value);

// The value of a 16-bit float, by the definition of the format.
double decode(DataType type, uint16_t bits);

// `size` elements that begin `offset` elements into their memory, with guard bytes on both sides.
// Integers are small enough that no sum or product of two wraps; floats are of many magnitudes.
class Elements {
 public:
  Elements(DataType type, size_t size, uint64_t seed, size_t offset = 0);
  // Not written to yet.
  Elements(DataType type, size_t size);

  void* data() { return memory_.data() + begin_; }
  const void* data() const { return memory_.data() + begin_; }
  size_t size() const { return size_; }
  std::string_view bytes() const;

  double operator[](size_t i) const;
  void set(size_t i, double value);
  // All of them. Sanitizers see that all of their memory is read.
  std::vector<double> values() const;

  bool guards_intact() const;

 private:
  double draw(std::mt19937_64& random) const;

  DataType type_;
  size_t size_, begin_;
  std::vector<std::byte> memory_;
};

}  // namespace perseus
