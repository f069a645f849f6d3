// Proof that the other end of a connection knows the job's secret (HMAC-SHA-256, RFC 2104).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace perseus {

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message);

// Whether both hold the same bytes, in a time that does not tell where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace perseus
