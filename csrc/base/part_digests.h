// Digests of a large message: those of its parts, which are computed side by side, by several
// threads and by several lanes of each. A MAC over them is one over the message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perseus {

// All parts have this size but the last, which may be shorter.
inline constexpr size_t kDigestedPartBytes = 64 << 10;

// Returns the SHA-256 digests of the parts, one after the other. `threads`: how many may work on
// it, the calling one among them.
std::string digests_of_parts(std::string_view message, int threads);

}  // namespace perseus
