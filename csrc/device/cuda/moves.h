// The parameter of the kernels that move runs of elements, each from one place to another. Packing
// moves from tensors into one buffer, unpacking moves back. Plain data, shared by the kernels
// (moves_kernels.inc) and the code that launches them (move_launch.cc). C++17, for older versions
// of nvcc.
#pragma once

#include <cstdint>

namespace perseus {

// A kernel's only parameter. Parameters may take 4,096 bytes.
struct MoveTable {
  static constexpr int kCapacity = 127;

  struct Run {
    const void* source;
    void* target;  // may equal the source if the types are equal; must not overlap it otherwise
    uint64_t elements;
    uint32_t first_block;  // from here to the next run's, each block moves one tile of this run
    uint32_t index;        // of its word in `found`
  };
  Run runs[kCapacity];
  uint16_t count;
  uint16_t puts_zeros;  // writes zeros to the target in place of NaN and infinity
  uint32_t blocks;      // of all runs
  double factor;
  // If the sources are to be searched, a word for each index: the first element found by this and
  // all earlier launches (see found_word). In pinned memory, or on the GPU. Null: no search.
  unsigned long long* found;
  // Where runs[0] begins in the caller's run: it may continue a run that was too long for the table
  // before.
  uint64_t first_element;
};
static_assert(sizeof(MoveTable) <= 4096);

inline constexpr uint32_t kMoveThreads = 256;  // of a block
// Elements are moved in groups that fill one 16-byte vector of the wider type. A run's groups begin
// where the target is aligned to them, so that all stores are aligned.
inline constexpr uint32_t kGroupBytes = 16;
// A block's tile of a run: four groups for each thread, whose loads are in flight together.
inline constexpr uint32_t kGroupsOfThread = 4;
inline constexpr uint32_t kGroupsOfTile = kMoveThreads * kGroupsOfThread;
inline constexpr uint32_t kMostBlocks = 0x7fffffff;  // of a launch

// The value of a word of `found`: the minimum over all elements found.
inline constexpr unsigned long long kNothingFound = ~0ull;
constexpr unsigned long long found_word(uint64_t element, bool is_infinity) {
  return element * 2 + (is_infinity ? 1 : 0);
}
constexpr uint64_t found_element(unsigned long long word) { return word / 2; }
constexpr bool found_infinity(unsigned long long word) { return word % 2 != 0; }

constexpr uint32_t group_elements(uint32_t from_size, uint32_t to_size) {
  return kGroupBytes / (from_size > to_size ? from_size : to_size);
}

// How many elements of a run's first group would lie before the run.
constexpr uint32_t elements_before(uint64_t target, uint32_t from_size, uint32_t to_size) {
  const uint32_t group_bytes = group_elements(from_size, to_size) * to_size;
  return static_cast<uint32_t>(target) % group_bytes / to_size;
}

constexpr uint64_t tile_elements(uint32_t from_size, uint32_t to_size) {
  return uint64_t{kGroupsOfTile} * group_elements(from_size, to_size);
}

}  // namespace perseus
