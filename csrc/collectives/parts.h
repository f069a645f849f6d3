// How a buffer is divided: into a part for each rank, and each part into chunks. All of it follows
// from sizes and from the group alone, so that every rank divides alike.
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

// Part `index` of `elements` in `parts` nearly equal parts; the first ones are the longer.
Range even_part(size_t elements, int parts, int index);
// Chunk `index` of `part`; empty past its end.
Range chunk_of(Range part, size_t chunk_elements, size_t index);

inline size_t divide_up(size_t a, size_t b) { return a / b + (a % b != 0); }

// How many message numbers an algorithm uses of kStepsPerCollective, so that a collective can be
// built of many.
inline constexpr uint32_t kStepsPerPart = kStepsPerCollective / 128;
// The options of collective number `part` (below 128) of those that this one is built of.
CollectiveOptions options_of_part(CollectiveOptions options, uint32_t part);

// Elements of a chunk, where the longest part is `longest` elements and each chunk takes
// `steps_per_chunk` numbers: small enough for the cache inside a host and large enough for the
// wire between hosts, or larger where kStepsPerPart would not suffice.
size_t chunk_elements(const Group& group, size_t longest, size_t element_size,
                      uint32_t steps_per_chunk);

// Bytes of the blocks before block `index`, where block i is of bytes_of[i].
uint64_t offset_of(std::span<const uint64_t> bytes_of, int index);

// Number of hosts of the group.
int host_count(const Group& group);

// Returns whether the group is small enough for everyone to send to everyone. In larger groups that
// many messages and connections cost more than they save hops.
bool is_small_group(const Group& group);

}  // namespace perseus
