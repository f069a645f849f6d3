// HMAC-SHA-256 (RFC 2104), by which each end of a connection proves that it knows the job's secret,
// and by which what it says afterwards is told from what others say.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "base/sha256.h"

namespace perseus {

using Mac = std::array<uint8_t, 32>;

// A key that is used for many messages: what depends on the key alone is computed once.
class HmacKey {
 public:
  explicit HmacKey(std::string_view key);

  // The MAC of the bytes of `first` and of the pieces, one after the other.
  Mac of(std::string_view first, std::initializer_list<std::string_view> pieces = {}) const;

 private:
  Sha256 inner_, outer_;
};

Mac hmac_sha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the bytes differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace perseus
