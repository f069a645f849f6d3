// Copying past the caches.
#pragma once

#include <cstddef>

namespace perseus {

// As std::memcpy, but does not read the lines of `target` into the cache before it overwrites them,
// and does not keep them there. For what is written long before it is used: memory then moves two
// times instead of three. Complete for other threads that synchronise with this one afterwards.
void streaming_copy(void* target, const void* source, size_t bytes);

}  // namespace perseus
