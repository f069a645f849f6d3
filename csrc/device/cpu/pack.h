// Gathers many tensors into one contiguous buffer for the wire, and spreads the result again.
// Copying, scaling, converting and looking for NaN happen in one pass over memory. Tensors on GPUs
// go another way, by kernels of their own: see device/cuda/move_launch.h. Stateless; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace perseus {

// One tensor's run of elements. pack reads `source`, unpack writes `target`; they may be equal.
struct Segment {
  const void* source = nullptr;
  void* target = nullptr;
  size_t elements = 0;
};

// Where the first NaN or infinity among the elements read is.
struct PackResult {
  bool is_finite = true;
  size_t segment = 0;  // index into the segments
  size_t element = 0;  // index within that segment
};

// buffer = the segments' sources, one after the other, each element times `factor`, as
// `buffer_type`. The types may differ between floating types only. With check_finite the sources
// are searched for NaN and infinity on the way; all is packed whatever is found.
PackResult pack_segments(std::span<const Segment> segments, DataType tensor_type,
                         DataType buffer_type, double factor, void* buffer, bool check_finite);
// The segments' targets = the buffer's elements times `factor`, as `tensor_type`. The check is made
// on the buffer.
PackResult unpack_segments(const void* buffer, DataType buffer_type,
                           std::span<const Segment> segments, DataType tensor_type, double factor,
                           bool check_finite);

}  // namespace perseus
