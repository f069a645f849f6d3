// A hash of a text that is the same in every process: FNV-1a, 64 bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace perseus {

constexpr uint64_t text_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace perseus
