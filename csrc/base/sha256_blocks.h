// The compression function of SHA-256 over whole blocks of 64 bytes, in portable code and with the
// instructions that most processors have for it since 2016 or so. Those take a fifth of the time,
// which counts where every control message carries a MAC.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace perseus {

using Sha256State = std::array<uint32_t, 8>;
using Sha256Blocks = void (*)(Sha256State& state, const uint8_t* blocks, size_t count);

void sha256_blocks_portable(Sha256State& state, const uint8_t* blocks, size_t count);
// Null if this processor lacks the instructions.
Sha256Blocks sha256_blocks_by_instructions();

// The same for as many blocks of each of kSha256Lanes messages. The instructions of one message
// wait for each other, so the four take half the time that they take one after the other.
inline constexpr size_t kSha256Lanes = 4;
void sha256_blocks_of_lanes(std::array<Sha256State, kSha256Lanes>& states,
                            const std::array<const uint8_t*, kSha256Lanes>& blocks, size_t count);

}  // namespace perseus
