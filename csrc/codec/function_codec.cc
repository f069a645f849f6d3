#include "codec/function_codec.h"

namespace perseus {

Result<std::unique_ptr<Codec>> FunctionCodec::create(std::string_view name,
                                                     const CodecFunctions& functions,
                                                     bool error_feedback) {
  if (name.empty()) return Status::invalid_argument("a codec needs a name");
  const char* missing = functions.encoded_size == nullptr ? "encoded_size"
                        : functions.encode == nullptr     ? "encode"
                        : functions.decode == nullptr     ? "decode"
                                                          : nullptr;
  if (missing != nullptr) {
    return Status::invalid_argument("codec '" + std::string(name) + "' has no function " + missing);
  }
  return std::unique_ptr<Codec>(new FunctionCodec(name, functions, error_feedback));
}

size_t FunctionCodec::encoded_size(size_t elements) const {
  return functions_.encoded_size(functions_.user, elements);
}

void FunctionCodec::encode(const float* source, size_t elements, std::byte* encoded) const {
  functions_.encode(functions_.user, source, elements, encoded);
}

void FunctionCodec::decode(const std::byte* encoded, float* target, size_t elements) const {
  functions_.decode(functions_.user, encoded, target, elements);
}

}  // namespace perseus
