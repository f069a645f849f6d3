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

}  // namespace perseus
