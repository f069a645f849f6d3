// float32 as float16 on the wire: half the bytes, 11 bits of precision, and a scale for each run.
// float16 reaches only from 6e-8 to 65504, while gradients are often smaller and sums larger.
#pragma once

#include "codec/codec.h"

namespace perseus {

// An encoded run is a float32 factor, by which decoding multiplies, then the elements, 2 bytes
// each. The factor is a power of two, so that scaling is exact. It puts the run's largest finite
// magnitude just below 2^15: no finite element overflows in float16, and the error of an element is
// at most 2^-11 of itself or 2^-39 of the run's largest. NaN and infinities are kept. Any thread.
class Fp16Codec : public Codec {
 public:
  std::string_view name() const override { return "fp16"; }
  size_t encoded_size(size_t elements) const override;
  void encode(const float* source, size_t elements, std::byte* encoded) const override;
  void decode(const std::byte* encoded, float* target, size_t elements) const override;
};

}  // namespace perseus
