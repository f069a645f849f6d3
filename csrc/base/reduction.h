// A reduction, as kernels provide it and links apply it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perseus {

// Reduces arriving elements into an accumulator piece by piece as they arrive, so that a received
// message is never stored and read again.
struct Reduction {
  // accumulator[i] = accumulator[i] op arriving[i]
  void (*kernel)(void* accumulator, const void* arriving, size_t elements) = nullptr;
  uint32_t arriving_size = 0;     // bytes of one arriving element
  uint32_t accumulator_size = 0;  // bytes of one accumulated element (float32 for 16-bit arrivals)
};

}  // namespace perseus
