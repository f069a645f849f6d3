#include "base/part_digests.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include "base/sha256.h"
#include "base/start_thread.h"

namespace perseus {
namespace {

constexpr size_t kLanes = kSha256Lanes;
constexpr size_t kGroupBytes = kLanes * kDigestedPartBytes;
// A thread takes some 50 us to start, in which it could have digested 100 KB.
constexpr size_t kLeastBytesOfThread = 4 << 20;
constexpr int kMostThreads = 8;

// The bytes that follow a message of a whole part (FIPS 180-4, section 5.1.1).
constexpr std::array<uint8_t, Sha256::kBlockBytes> padding_of_a_part() {
  std::array<uint8_t, Sha256::kBlockBytes> padding{0x80};
  const uint64_t bits = kDigestedPartBytes * 8;
  for (size_t i = 0; i < 8; ++i) {
    padding[padding.size() - 8 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  }
  return padding;
}
constexpr std::array<uint8_t, Sha256::kBlockBytes> kPadding = padding_of_a_part();

// Digests as many whole parts as there are lanes.
void digest_group(const char* parts, char* digests) {
  std::array<Sha256State, kLanes> states;
  states.fill(kSha256Begin);
  std::array<const uint8_t*, kLanes> blocks;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    blocks[lane] = reinterpret_cast<const uint8_t*>(parts) + lane * kDigestedPartBytes;
  }
  sha256_blocks_of_lanes(states, blocks, kDigestedPartBytes / Sha256::kBlockBytes);
  blocks.fill(kPadding.data());
  sha256_blocks_of_lanes(states, blocks, 1);
  for (const Sha256State& state : states) {
    const Sha256Digest digest = sha256_digest_of(state);
    std::memcpy(digests, digest.data(), digest.size());
    digests += digest.size();
  }
}

}  // namespace

std::string digests_of_parts(std::string_view message, int threads) {
  constexpr size_t kDigestBytes = std::tuple_size_v<Sha256Digest>;
  const size_t parts = (message.size() + kDigestedPartBytes - 1) / kDigestedPartBytes;
  std::string digests(parts * kDigestBytes, '\0');
  const size_t groups = message.size() / kGroupBytes;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t group = next++; group < groups; group = next++) {
      digest_group(message.data() + group * kGroupBytes,
                   digests.data() + group * kLanes * kDigestBytes);
    }
  };
  const size_t wanted = std::min(message.size() / kLeastBytesOfThread,
                                 static_cast<size_t>(std::clamp(threads, 1, kMostThreads)));
  std::vector<std::thread> others(wanted > 1 ? wanted - 1 : 0);
  for (std::thread& other : others) {
    if (!start_thread(other, "a digest", work).is_ok()) break;  // there are fewer, then
  }
  work();
  for (size_t part = groups * kLanes; part < parts; ++part) {
    const Sha256Digest digest =
        sha256(message.substr(part * kDigestedPartBytes, kDigestedPartBytes));
    std::memcpy(digests.data() + part * kDigestBytes, digest.data(), kDigestBytes);
  }
  for (std::thread& other : others) {
    if (other.joinable()) other.join();
  }
  return digests;
}

}  // namespace perseus
