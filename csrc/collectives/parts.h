// Divides a buffer into a part for each rank, and each part into chunks. The division depends on
// sizes and on the group alone, so that it is the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/collective.h"

namespace perseus {

struct Range {
  size_t begin = 0;
  size_t size = 0;
};

// Part `index` of `elements` elements in `parts` nearly equal parts. The first ones are longer by
// one element where they differ.
Range even_part(size_t elements, int parts, int index);
// Chunk `index` of `part`; empty past its end.
Range chunk_of(Range part, size_t chunk_elements, size_t index);

inline size_t divide_up(size_t a, size_t b) { return a / b + (a % b != 0); }

// How many message numbers an algorithm uses of kStepsPerCollective, so that a collective can be
// built of many.
inline constexpr uint32_t kStepsPerPart = kStepsPerCollective / 128;
// The options of collective number `part` (below 128) of those that this one is built of.
CollectiveOptions options_of_part(CollectiveOptions options, uint32_t part);

// Elements of a chunk: small enough for the cache inside a host, and large enough for the wire
// between hosts. `longest` is the longest part's elements. Each chunk takes `steps_per_chunk`
// message numbers; chunks become larger where kStepsPerPart numbers would not be enough.
size_t chunk_elements(const Group& group, size_t longest, size_t element_size,
                      uint32_t steps_per_chunk);

// Bytes of all blocks before block `index`, where block i has bytes_of[i] bytes.
uint64_t offset_of(std::span<const uint64_t> bytes_of, int index);

// Number of hosts of the group.
int host_count(const Group& group);

// Returns whether the group is small enough for everyone to send to everyone. In larger groups that
// many messages and connections cost more than they save hops.
bool is_small_group(const Group& group);

}  // namespace perseus
