#include "base/hmac.h"

#include <cstring>

namespace perseus {
namespace {

std::string_view view(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

HmacKey::HmacKey(std::string_view key) {
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
  inner_.update({inner_pad, sizeof(inner_pad)});
  outer_.update({outer_pad, sizeof(outer_pad)});
}

Mac HmacKey::of(std::string_view first, std::initializer_list<std::string_view> pieces) const {
  Sha256 inner = inner_;
  inner.update(first);
  for (const std::string_view piece : pieces) inner.update(piece);
  Sha256 outer = outer_;
  outer.update(view(inner.finish()));
  return outer.finish();
}

Mac hmac_sha256(std::string_view key, std::string_view message) { return HmacKey(key).of(message); }

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace perseus
