// HMAC-SHA-256 (RFC 2104), by which each end of a connection proves that it knows the job's secret.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace perseus {

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the bytes differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace perseus
