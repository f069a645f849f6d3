// Test data for collectives that move bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perseus {

using Bytes = std::vector<uint8_t>;

// Bytes that differ by sender, receiver and position.
inline Bytes pattern(size_t size, int from, int to = 0) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + i / 251 + from * 31 + to * 101);
  return bytes;
}

}  // namespace perseus
