// A copy that bypasses the caches.
#pragma once

#include <cstddef>

namespace perseus {

// Like std::memcpy, but neither reads the lines of `target` into the cache before overwriting them
// nor keeps them there. For data that is written long before it is used: it then crosses the memory
// bus twice instead of three times. Other threads that synchronise with this one afterwards see the
// whole copy.
void streaming_copy(void* target, const void* source, size_t bytes);

}  // namespace perseus
