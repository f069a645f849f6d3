#include "codec/fp16_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

constexpr size_t kHeaderSize = sizeof(float);
// One below float16's largest exponent, so that rounding up cannot reach infinity.
constexpr int kLargestExponent = 15;
// Both the factor and its inverse must be normal floats.
constexpr int kMostShift = 126;

// Compares the bits, since magnitudes and their bits as integers have the same order: compilers
// vectorise a maximum of integers, but may not reorder one of floats.
float largest_finite_magnitude(const float* source, size_t elements) {
  constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  int32_t largest = 0;
  for (size_t i = 0; i < elements; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(source[i]) & kMagnitude;
    const int32_t finite = magnitude < kInfinity ? magnitude : 0;
    largest = finite > largest ? finite : largest;
  }
  return std::bit_cast<float>(largest);
}

// Returns log2 of the factor that brings `largest` into [2^14, 2^15).
int shift_of(float largest) {
  if (largest == 0.0f) return 0;
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest is in [2^(exponent - 1), 2^exponent)
  return std::clamp(kLargestExponent - exponent, -kMostShift, kMostShift);
}

}  // namespace

size_t Fp16Codec::encoded_size(size_t elements) const {
  return kHeaderSize + elements * size_of(DataType::kFloat16);
}

void Fp16Codec::encode(const float* source, size_t elements, std::byte* encoded) const {
  const int shift = shift_of(largest_finite_magnitude(source, elements));
  const float factor_back = std::ldexp(1.0f, -shift);
  std::memcpy(encoded, &factor_back, kHeaderSize);
  scale_convert(encoded + kHeaderSize, DataType::kFloat16, source, DataType::kFloat32, elements,
                std::ldexp(1.0, shift));
}

void Fp16Codec::decode(const std::byte* encoded, float* target, size_t elements) const {
  float factor = 0;
  std::memcpy(&factor, encoded, kHeaderSize);
  scale_convert(target, DataType::kFloat32, encoded + kHeaderSize, DataType::kFloat16, elements,
                factor);
}

}  // namespace perseus
