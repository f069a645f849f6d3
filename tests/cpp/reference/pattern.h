// Test data for what moves bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perseus {

using Bytes = std::vector<uint8_t>;

// Bytes whose values tell their positions, and differ by sender and receiver.
Bytes pattern(size_t size, uint32_t from, uint32_t to = 0);

}  // namespace perseus
