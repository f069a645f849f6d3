// What float32 tensors look like on the wire. A codec turns a run of elements into a known number
// of bytes and back; what it loses may be kept and added to the tensor's next gradient.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace perseus {

// Pure functions of their input; any thread.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;
  // Bytes that `elements` floats take when encoded.
  virtual size_t encoded_size(size_t elements) const = 0;
  virtual void encode(const float* source, size_t elements, std::byte* encoded) const = 0;
  virtual void decode(const std::byte* encoded, float* target, size_t elements) const = 0;
  // Whether what encode lost is to be kept for the next time (error feedback, Seide 2014).
  virtual bool has_error_feedback() const { return false; }
};

// Codecs by id: 0 stands for "as the settings say", 1 "none" (null), then "fp16", "bf16"; a user's
// has one that follows from its name, so that ranks which compare ids compare names. Any thread.
inline constexpr int kCodecFromSettings = 0;
inline constexpr int kCodecNone = 1;
inline constexpr int kCodecFp16 = 2;
inline constexpr int kCodecBf16 = 3;
// kInvalidArgument: the name is taken, or another has the same id.
Result<int> register_codec(std::unique_ptr<Codec> codec);
Result<int> find_codec(std::string_view name);  // kInvalidArgument: unknown, lists those known
bool codec_exists(int id);
bool has_user_codecs();
// Around a fork, so that a child can look codecs up.
void codecs_before_fork();
void codecs_after_fork();
// Null for "none", and for an id that stands for no codec; codecs live as long as the process.
const Codec* codec(int id);

}  // namespace perseus
