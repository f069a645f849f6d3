// What a kernel is told: runs of elements to be moved, each from one place to another. Packing
// moves from tensors into one buffer, unpacking back. Plain data, shared by the kernels
// (moves_kernels.inc) and by who launches them (move_launch.cc), and C++17, which older versions of
// nvcc take.
#pragma once

#include <cstdint>

namespace perseus {

// The one parameter of a kernel, which may take 4,096 bytes.
struct MoveTable {
  static constexpr int kCapacity = 127;

  struct Run {
    const void* source;
    void* target;  // may equal the source, if the types do; else they do not overlap
    uint64_t elements;
    uint32_t first_block;  // blocks up to the next run's work on this one, a tile each
    uint32_t index;        // of its word among those of `found`
  };
  Run runs[kCapacity];
  uint16_t count;
  uint16_t puts_zeros;  // in the target, where a NaN or infinity is found
  uint32_t blocks;      // of all runs
  double factor;
  // A word for each index, if the sources are to be searched: what was found there first, of this
  // and all earlier launches (see found_word). Memory that both sides have, or the GPU's. Null: not
  // searched.
  unsigned long long* found;
  // Of runs[0], which may go on with what was too long for the table before: where it begins in the
  // caller's run.
  uint64_t first_element;
};
static_assert(sizeof(MoveTable) <= 4096);

inline constexpr uint32_t kMoveThreads = 256;  // of a block
// Elements are moved in groups that fill one 16-byte vector of the wider type. Those of a run begin
// where the target is aligned to them, so that all stores are.
inline constexpr uint32_t kGroupBytes = 16;
// A block's share of a run: four groups for each thread, which are in flight together.
inline constexpr uint32_t kGroupsOfThread = 4;
inline constexpr uint32_t kGroupsOfTile = kMoveThreads * kGroupsOfThread;
inline constexpr uint32_t kMostBlocks = 0x7fffffff;  // of a launch

// What a word of `found` holds: the least of what there is.
inline constexpr unsigned long long kNothingFound = ~0ull;
constexpr unsigned long long found_word(uint64_t element, bool is_infinity) {
  return element * 2 + (is_infinity ? 1 : 0);
}
constexpr uint64_t found_element(unsigned long long word) { return word / 2; }
constexpr bool found_infinity(unsigned long long word) { return word % 2 != 0; }

constexpr uint32_t group_elements(uint32_t from_size, uint32_t to_size) {
  return kGroupBytes / (from_size > to_size ? from_size : to_size);
}

// Elements of a run's first group that would lie before the run.
constexpr uint32_t elements_before(uint64_t target, uint32_t from_size, uint32_t to_size) {
  const uint32_t group_bytes = group_elements(from_size, to_size) * to_size;
  return static_cast<uint32_t>(target) % group_bytes / to_size;
}

constexpr uint64_t tile_elements(uint32_t from_size, uint32_t to_size) {
  return uint64_t{kGroupsOfTile} * group_elements(from_size, to_size);
}

}  // namespace perseus
