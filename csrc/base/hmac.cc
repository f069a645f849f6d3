#include "base/hmac.h"

#include <cstring>

#include "base/sha256.h"

namespace perseus {
namespace {

std::string_view view(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message) {
  char block[Sha256::kBlockBytes] = {};
  if (key.size() > sizeof(block)) {
    const Sha256Digest hashed = sha256(key);
    std::memcpy(block, hashed.data(), hashed.size());
  } else {
    key.copy(block, key.size());
  }
  char inner_pad[sizeof(block)];
  char outer_pad[sizeof(block)];
  for (size_t i = 0; i < sizeof(block); ++i) {
    inner_pad[i] = static_cast<char>(block[i] ^ 0x36);
    outer_pad[i] = static_cast<char>(block[i] ^ 0x5c);
  }
  Sha256 inner;
  inner.update({inner_pad, sizeof(inner_pad)});
  inner.update(message);
  Sha256 outer;
  outer.update({outer_pad, sizeof(outer_pad)});
  outer.update(view(inner.finish()));
  return outer.finish();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace perseus
