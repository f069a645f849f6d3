// The job's secret: bytes that every connection between ranks must prove that it knows.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

inline constexpr size_t kSecretBytes = 32;

// From the kernel's random number generator.
std::string random_bytes(size_t count);

std::string to_hex(std::string_view bytes);
// kInvalidArgument unless `hex` is an even, nonzero number of hexadecimal digits. The error does
// not repeat the text, since it is secret.
Result<std::string> from_hex(std::string_view hex);

}  // namespace perseus
