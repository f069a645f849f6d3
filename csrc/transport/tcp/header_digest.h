// A digest of the headers of data frames, for a MAC to cover: with it, one MAC proves which data
// frames came before it, at a fraction of a MAC for each. The headers' words are the coefficients
// of a polynomial, whose value at a secret place is the digest (Carter and Wegman 1979). It is for
// MACs only: if anybody saw a digest, they could find the place.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "base/hmac.h"
#include "transport/channel.h"

namespace perseus {

class HeaderDigest {
 public:
  explicit HeaderDigest(const Mac& key) {
    uint64_t place;
    std::memcpy(&place, key.data(), sizeof place);
    place %= kPrime;
    powers_.back() = 1;
    for (size_t i = kWords; i > 0; --i) {
      powers_[i - 1] = reduce(static_cast<Wide>(powers_[i]) * place);
    }
  }

  void add(const FrameHeader& header) {
    std::array<uint32_t, kWords> words;
    static_assert(sizeof words == sizeof header);
    std::memcpy(words.data(), &header, sizeof header);
    // The sum is below 2^123.
    Wide sum = static_cast<Wide>(value_) * powers_[0];
    for (size_t i = 0; i < kWords; ++i) sum += static_cast<Wide>(words[i]) * powers_[i + 1];
    value_ = reduce(sum);
  }

  // Returns the digest of what was added since the last call.
  uint64_t take() {
    const uint64_t value = value_;
    value_ = 0;
    return value;
  }

 private:
  using Wide = unsigned __int128;
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  static constexpr size_t kWords = sizeof(FrameHeader) / sizeof(uint32_t);

  static uint64_t reduce(Wide value) {
    const uint64_t folded =
        (static_cast<uint64_t>(value) & kPrime) + static_cast<uint64_t>(value >> 61);  // below 2^63
    const uint64_t rest = (folded & kPrime) + (folded >> 61);
    return rest >= kPrime ? rest - kPrime : rest;
  }

  std::array<uint64_t, kWords + 1> powers_;  // of the secret place, the highest first
  uint64_t value_ = 0;
};

}  // namespace perseus
