#include "codec/fp16_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/types.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

constexpr size_t kHeaderSize = sizeof(float);
// One below float16's largest exponent, so that rounding up cannot reach infinity.
constexpr int kLargestExponent = 15;
// Both the factor and its inverse must be normal floats.
constexpr int kMostShift = 126;

float finite_magnitude(float x) {
  const float magnitude = std::fabs(x);
  return magnitude <= std::numeric_limits<float>::max() ? magnitude : 0.0f;
}

// Independent lanes, as the compiler may not reorder the comparisons of floats by itself.
float largest_finite_magnitude(const float* source, size_t elements) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float magnitude = finite_magnitude(source[i + lane]);
      lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
    }
  }
  float largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < elements; ++i) largest = std::max(largest, finite_magnitude(source[i]));
  return largest;
}

// log2 of the factor that brings `largest` into [2^14, 2^15).
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
