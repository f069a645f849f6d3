#include "messages/message_form.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace perseus {

Result<MessageForm> MessageForm::of(const TensorDescription& tensor, int codec_id) {
  const auto elements = static_cast<uint64_t>(tensor.elements());
  MessageForm form(tensor.dtype, elements, nullptr);
  form.bytes_ = elements * size_of(tensor.dtype);
  if (codec_id == kCodecNone || elements == 0) return form;
  form.codec_ = codec(codec_id);
  if (form.codec_ == nullptr) {
    return Status::mismatch("it was encoded by a codec that this rank does not have (" +
                            std::to_string(codec_id) + "); register the same codecs on all ranks");
  }
  const std::string name(form.codec_->name());
  if (tensor.dtype != DataType::kFloat32) {
    return Status::invalid_argument("codec is '" + name + "'; it must be 'none' for " +
                                    to_string(tensor) + ", since codecs encode float32");
  }
  const uint64_t full = elements / kRunElements, rest = elements % kRunElements;
  const uint64_t full_bytes = full > 0 ? form.encoded_size(kRunElements) : 0;
  const uint64_t rest_bytes = rest > 0 ? form.encoded_size(rest) : 0;
  uint64_t bytes = 0;
  if ((full > 0 && full_bytes == 0) || (rest > 0 && rest_bytes == 0) ||
      __builtin_mul_overflow(full, full_bytes, &bytes) ||
      __builtin_add_overflow(bytes, rest_bytes, &bytes) || bytes > INT64_MAX) {
    return Status::invalid_argument("codec '" + name + "' gives no possible size for " +
                                    to_string(tensor));
  }
  form.bytes_ = bytes;
  return form;
}

uint64_t MessageForm::encoded_size(uint64_t elements) const {
  return codec_ != nullptr ? codec_->encoded_size(elements) : elements * size_of(dtype_);
}

MessageForm::Run MessageForm::run(uint32_t index) const {
  const uint64_t first = index * kRunElements;
  const uint64_t elements = std::min(kRunElements, elements_ - first);
  const uint64_t offset = index == 0 ? 0 : index * encoded_size(kRunElements);
  return {first, elements, offset, encoded_size(elements)};
}

void MessageForm::encode(const Run& run, const std::byte* elements, std::byte* wire) const {
  if (codec_ != nullptr) {
    codec_->encode(reinterpret_cast<const float*>(elements), run.elements, wire);
  } else {
    std::memcpy(wire, elements, run.bytes);
  }
}

void MessageForm::decode(const Run& run, const std::byte* wire, std::byte* elements) const {
  if (codec_ != nullptr) {
    codec_->decode(wire, reinterpret_cast<float*>(elements), run.elements);
  } else {
    std::memcpy(elements, wire, run.bytes);
  }
}

void MessageForm::encode_all(const std::byte* elements, std::byte* wire) const {
  for (uint32_t index = 0; index < runs(); ++index) {
    const Run run = this->run(index);
    encode(run, elements + run.first * size_of(dtype_), wire + run.offset);
  }
}

void MessageForm::decode_all(const std::byte* wire, std::byte* elements) const {
  for (uint32_t index = 0; index < runs(); ++index) {
    const Run run = this->run(index);
    decode(run, wire + run.offset, elements + run.first * size_of(dtype_));
  }
}

}  // namespace perseus
