#include "reference/pattern.h"

namespace perseus {

Bytes pattern(size_t size, uint32_t from, uint32_t to) {
  Bytes bytes(size);
  // A linear congruential generator (Numerical Recipes), whose upper bits have its full period.
  uint32_t state = (from * 65537 + to) * 2654435761u + 1;
  for (uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bytes;
}

}  // namespace perseus
