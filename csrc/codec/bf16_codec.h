// float32 as bfloat16 on the wire: half the bytes and float32's range, with 8 bits of precision.
#pragma once

#include "codec/codec.h"

namespace perseus {

// An encoded run is its elements, 2 bytes each, rounded to nearest even. Any thread.
class Bf16Codec : public Codec {
 public:
  std::string_view name() const override { return "bf16"; }
  size_t encoded_size(size_t elements) const override;
  void encode(const float* source, size_t elements, std::byte* encoded) const override;
  void decode(const std::byte* encoded, float* target, size_t elements) const override;
};

}  // namespace perseus
