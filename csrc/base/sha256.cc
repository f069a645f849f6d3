#include "base/sha256.h"

#include <algorithm>
#include <cstring>

namespace perseus {
namespace {

void compress(Sha256State& state, const uint8_t* blocks, size_t count) {
  static const Sha256Blocks by_instructions = sha256_blocks_by_instructions();
  (by_instructions != nullptr ? by_instructions : sha256_blocks_portable)(state, blocks, count);
}

}  // namespace

void Sha256::update(std::string_view bytes) {
  if (bytes.empty()) return;  // there may be no address, and memcpy wants one
  total_bytes_ += bytes.size();
  if (pending_bytes_ != 0) {
    const size_t taken = std::min(bytes.size(), kBlockBytes - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, bytes.data(), taken);
    pending_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (pending_bytes_ < kBlockBytes) return;
    compress(state_, pending_.data(), 1);
    pending_bytes_ = 0;
  }
  const size_t blocks = bytes.size() / kBlockBytes;
  compress(state_, reinterpret_cast<const uint8_t*>(bytes.data()), blocks);
  bytes.remove_prefix(blocks * kBlockBytes);
  std::memcpy(pending_.data(), bytes.data(), bytes.size());
  pending_bytes_ = bytes.size();
}

Sha256Digest Sha256::finish() {
  const uint64_t total_bits = total_bytes_ * 8;
  update(std::string_view("\x80", 1));
  constexpr size_t kLengthOffset = kBlockBytes - 8;
  static constexpr char kZeros[kBlockBytes] = {};
  const size_t padding = (kBlockBytes + kLengthOffset - pending_bytes_) % kBlockBytes;
  update(std::string_view(kZeros, padding));
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(total_bits >> (56 - 8 * i));
  update(std::string_view(length, sizeof(length)));
  return sha256_digest_of(state_);
}

Sha256Digest sha256_digest_of(const Sha256State& state) {
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Sha256Digest sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace perseus
