// The job's secret. Both ends of every connection between ranks must prove that they know it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

inline constexpr size_t kSecretBytes = 32;
inline constexpr size_t kLeastSecretBytes = 16;  // of a secret that users choose

// Random bytes from the kernel's generator.
std::string random_bytes(size_t count);

std::string to_hex(std::string_view bytes);
// kInvalidArgument unless `hex` is an even, nonzero number of hexadecimal digits. The error does
// not repeat the text, since it is secret.
Result<std::string> from_hex(std::string_view hex);

}  // namespace perseus
