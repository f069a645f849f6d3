// The form of float32 tensors on the wire. A codec turns a run of elements into a known number of
// bytes and back. The part that coding loses may be kept and added to the tensor's next gradient.
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
  // Returns whether the part that encode loses is kept for the next time (error feedback, Seide
  // 2014).
  virtual bool has_error_feedback() const { return false; }
};

// Codecs by id: 0 stands for "as the settings say", 1 for "none" (null), then "fp16" and "bf16".
// The id of a user's codec follows from its name, so that ranks which compare ids compare names.
// Any thread.
inline constexpr int kCodecFromSettings = 0;
inline constexpr int kCodecNone = 1;
inline constexpr int kCodecFp16 = 2;
inline constexpr int kCodecBf16 = 3;
// kInvalidArgument: the name is taken, or another codec has the same id.
Result<int> register_codec(std::unique_ptr<Codec> codec);
Result<int> find_codec(std::string_view name);  // kInvalidArgument: unknown; lists the known ones
bool codec_exists(int id);
bool has_user_codecs();
// Called before and after a fork, so that the child can look codecs up.
void codecs_before_fork();
void codecs_after_fork();
// Returns null for "none" and for an unknown id. Codecs live as long as the process.
const Codec* codec(int id);

}  // namespace perseus
