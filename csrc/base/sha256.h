// SHA-256 (FIPS 180-4), here so that the engine needs no cryptography library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/sha256_blocks.h"

namespace perseus {

using Sha256Digest = std::array<uint8_t, 32>;

// The state before the first block.
inline constexpr Sha256State kSha256Begin = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// Computes a digest incrementally; a copy goes on by itself. One thread at a time.
class Sha256 {
 public:
  static constexpr size_t kBlockBytes = 64;

  void update(std::string_view bytes);
  // Returns the digest of all updates. Call once.
  Sha256Digest finish();

 private:
  Sha256State state_ = kSha256Begin;
  std::array<uint8_t, kBlockBytes> pending_;
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

Sha256Digest sha256(std::string_view bytes);
// The digest that is in the state after the last block, the one with the length.
Sha256Digest sha256_digest_of(const Sha256State& state);

}  // namespace perseus
