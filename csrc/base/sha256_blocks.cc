#include "base/sha256_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace perseus {
namespace {

// FIPS 180-4, section 4.2.2.
alignas(16) constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void compress(Sha256State& state, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (int t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t x = w[t - 15];
    const uint32_t y = w[t - 2];
    const uint32_t sigma0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3);
    const uint32_t sigma1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10);
    w[t] = w[t - 16] + sigma0 + w[t - 7] + sigma1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t t2 = sum0 + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const Sha256State worked = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += worked[i];
}

#if defined(__x86_64__)

#define PERSEUS_SHA __attribute__((target("sha,sse4.1,ssse3")))

// The instructions keep the state as two vectors, of a, b, e, f and of c, d, g, h, the first named
// in the highest lane. sha256rnds2 does two rounds; msg1 and msg2 make four more words of the
// message's schedule.
template <size_t kLanes>
PERSEUS_SHA void blocks_by_instructions(Sha256State* states, const uint8_t* const* blocks,
                                        size_t count) {
  const __m128i to_big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  const auto* constants = reinterpret_cast<const __m128i*>(kRoundConstants.data());
  __m128i abef[kLanes];
  __m128i cdgh[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    auto* words = reinterpret_cast<__m128i*>(states[lane].data());
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
    abef[lane] = _mm_alignr_epi8(badc, hgfe, 8);
    cdgh[lane] = _mm_blend_epi16(hgfe, badc, 0xf0);
  }
  for (size_t block = 0; block < count; ++block) {
    __m128i abef_before[kLanes];
    __m128i cdgh_before[kLanes];
    __m128i schedule[kLanes][4];  // the last sixteen words of each
    for (size_t lane = 0; lane < kLanes; ++lane) {
      abef_before[lane] = abef[lane];
      cdgh_before[lane] = cdgh[lane];
    }
    for (size_t four = 0; four < 16; ++four) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        __m128i(&w)[4] = schedule[lane];
        __m128i& now = w[four % 4];
        if (four < 4) {
          const auto* message = reinterpret_cast<const __m128i*>(blocks[lane] + 64 * block);
          now = _mm_shuffle_epi8(_mm_loadu_si128(message + four), to_big_endian);
        } else {
          const __m128i last = w[(four + 3) % 4];
          const __m128i seven_ago = _mm_alignr_epi8(last, w[(four + 2) % 4], 4);
          const __m128i with_sigma0 = _mm_sha256msg1_epu32(now, w[(four + 1) % 4]);
          now = _mm_sha256msg2_epu32(_mm_add_epi32(with_sigma0, seven_ago), last);
        }
        const __m128i added = _mm_add_epi32(now, _mm_load_si128(constants + four));
        cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], added);
        abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], _mm_shuffle_epi32(added, 0x0e));
      }
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      abef[lane] = _mm_add_epi32(abef[lane], abef_before[lane]);
      cdgh[lane] = _mm_add_epi32(cdgh[lane], cdgh_before[lane]);
    }
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    auto* words = reinterpret_cast<__m128i*>(states[lane].data());
    const __m128i feba = _mm_shuffle_epi32(abef[lane], 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[lane], 0xb1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

void blocks_of_one(Sha256State& state, const uint8_t* blocks, size_t count) {
  blocks_by_instructions<1>(&state, &blocks, count);
}

// clang++ 14's __builtin_cpu_supports does not know SHA.
bool has_instructions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_sse = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_SSE4_1) != 0 &&
                       (ecx & bit_SSSE3) != 0;
  return has_sse && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_SHA) != 0;
}

#endif

}  // namespace

void sha256_blocks_portable(Sha256State& state, const uint8_t* blocks, size_t count) {
  for (; count != 0; --count, blocks += 64) compress(state, blocks);
}

Sha256Blocks sha256_blocks_by_instructions() {
#if defined(__x86_64__)
  static const bool found = has_instructions();
  return found ? blocks_of_one : nullptr;
#else
  return nullptr;
#endif
}

void sha256_blocks_of_lanes(std::array<Sha256State, kSha256Lanes>& states,
                            const std::array<const uint8_t*, kSha256Lanes>& blocks, size_t count) {
#if defined(__x86_64__)
  if (sha256_blocks_by_instructions() != nullptr) {
    return blocks_by_instructions<kSha256Lanes>(states.data(), blocks.data(), count);
  }
#endif
  for (size_t lane = 0; lane < kSha256Lanes; ++lane) {
    sha256_blocks_portable(states[lane], blocks[lane], count);
  }
}

}  // namespace perseus
