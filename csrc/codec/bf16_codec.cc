#include "codec/bf16_codec.h"

#include "base/types.h"
#include "device/cpu/kernels.h"

namespace perseus {

size_t Bf16Codec::encoded_size(size_t elements) const {
  return elements * size_of(DataType::kBfloat16);
}

void Bf16Codec::encode(const float* source, size_t elements, std::byte* encoded) const {
  convert(encoded, DataType::kBfloat16, source, DataType::kFloat32, elements);
}

void Bf16Codec::decode(const std::byte* encoded, float* target, size_t elements) const {
  convert(target, DataType::kFloat32, encoded, DataType::kBfloat16, elements);
}

}  // namespace perseus
