// float32 as float16 on the wire: half the bytes, 11 bits of precision, and a scale for each run,
// as float16 reaches only from 6e-8 to 65504 while gradients are often smaller and sums larger.
#pragma once

#include "codec/codec.h"

namespace perseus {

// A run is the float32 that its elements are to be multiplied by when decoded, then the elements, 2
// bytes each. The factor is a power of two, so that scaling is exact, and puts the run's largest
// finite magnitude just below 2^15: no finite element overflows in float16, and an element is off
// by at most 2^-11 of itself or 2^-39 of the run's largest. NaN and infinities stay what they are.
// Any thread.
class Fp16Codec : public Codec {
 public:
  std::string_view name() const override { return "fp16"; }
  size_t encoded_size(size_t elements) const override;
  void encode(const float* source, size_t elements, std::byte* encoded) const override;
  void decode(const std::byte* encoded, float* target, size_t elements) const override;
};

}  // namespace perseus
