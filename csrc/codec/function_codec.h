// A codec made of the plain functions that the C ABI takes.
#pragma once

#include "codec/codec.h"

namespace perseus {

struct CodecFunctions {
  size_t (*encoded_size)(void* user, size_t elements) = nullptr;
  void (*encode)(void* user, const float* elements, size_t count, void* encoded) = nullptr;
  void (*decode)(void* user, const void* encoded, float* elements, size_t count) = nullptr;
  void* user = nullptr;  // must be valid until the process ends
};

// As thread-safe as the functions are.
class FunctionCodec : public Codec {
 public:
  // kInvalidArgument: no name, or a function is missing.
  static Result<std::unique_ptr<Codec>> create(std::string_view name,
                                               const CodecFunctions& functions,
                                               bool error_feedback);

  std::string_view name() const override { return name_; }
  size_t encoded_size(size_t elements) const override;
  void encode(const float* source, size_t elements, std::byte* encoded) const override;
  void decode(const std::byte* encoded, float* target, size_t elements) const override;
  bool has_error_feedback() const override { return error_feedback_; }

 private:
  FunctionCodec(std::string_view name, const CodecFunctions& functions, bool error_feedback)
      : name_(name), functions_(functions), error_feedback_(error_feedback) {}

  const std::string name_;
  const CodecFunctions functions_;
  const bool error_feedback_;
};

}  // namespace perseus
