// What the engine asks of the place where tensors live: gather many tensors into one contiguous
// buffer for the wire, and spread the result again. Copying, scaling, converting and looking for
// NaN happen in one pass over memory. One implementation for each kind of device.
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

// Where the first NaN or infinity of what was read lies.
struct PackResult {
  bool is_finite = true;
  size_t segment = 0;  // index into the segments
  size_t element = 0;  // index within that segment
};

// Functions of memory on one device. Any thread.
class Device {
 public:
  virtual ~Device() = default;

  // buffer = the segments' sources, one after the other, each element times `factor`, as
  // `buffer_type`. The types may differ between floating types only. With check_finite the sources
  // are searched for NaN and infinity on the way; all is packed whatever is found.
  virtual PackResult pack(std::span<const Segment> segments, DataType tensor_type,
                          DataType buffer_type, double factor, void* buffer,
                          bool check_finite) const = 0;
  // The segments' targets = the buffer's elements times `factor`, as `tensor_type`. The check is
  // made on the buffer.
  virtual PackResult unpack(const void* buffer, DataType buffer_type,
                            std::span<const Segment> segments, DataType tensor_type, double factor,
                            bool check_finite) const = 0;
};

}  // namespace perseus
