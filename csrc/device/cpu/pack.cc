#include "device/cpu/pack.h"

#include <algorithm>

#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Elements moved before the same elements are searched, while they are in the first-level cache.
constexpr size_t kTile = 2048;

bool is_copy(const void* target, DataType to, const void* source, DataType from, double factor) {
  return to == from && factor == 1.0 && target != source;
}

void move_unchecked(void* target, DataType to, const void* source, DataType from, size_t elements,
                    double factor) {
  if (is_copy(target, to, source, from, factor)) {
    copy_tensor(target, source, elements, from);
  } else {
    scale_convert(target, to, source, from, elements, factor);
  }
}

// Moves one segment; gives the index of the first NaN or infinity in `source`, or `elements`.
size_t move_checked(void* target, DataType to, const void* source, DataType from, size_t elements,
                    double factor) {
  if (is_copy(target, to, source, from, factor)) {
    const bool is_finite = copy_finite(target, source, elements, from);
    return is_finite ? elements : find_non_finite(source, elements, from);
  }
  size_t first = elements;
  for (size_t done = 0; done < elements; done += kTile) {
    const size_t count = std::min(kTile, elements - done);
    const auto* tile = static_cast<const std::byte*>(source) + done * size_of(from);
    if (first == elements) {
      const size_t found = find_non_finite(tile, count, from);
      if (found != count) first = done + found;
    }
    scale_convert(static_cast<std::byte*>(target) + done * size_of(to), to, tile, from, count,
                  factor);
  }
  return first;
}

void move_segment(void* target, DataType to, const void* source, DataType from, size_t index,
                  size_t elements, double factor, bool check_finite, PackResult& result) {
  if (!check_finite || !result.is_finite || !is_floating(from)) {
    move_unchecked(target, to, source, from, elements, factor);
    return;
  }
  const size_t first = move_checked(target, to, source, from, elements, factor);
  if (first != elements) result = {false, index, first};
}

}  // namespace

PackResult pack_segments(std::span<const Segment> segments, DataType tensor_type,
                         DataType buffer_type, double factor, void* buffer, bool check_finite) {
  PackResult result;
  auto* next = static_cast<std::byte*>(buffer);
  for (size_t i = 0; i < segments.size(); ++i) {
    move_segment(next, buffer_type, segments[i].source, tensor_type, i, segments[i].elements,
                 factor, check_finite, result);
    next += segments[i].elements * size_of(buffer_type);
  }
  return result;
}

PackResult unpack_segments(const void* buffer, DataType buffer_type,
                           std::span<const Segment> segments, DataType tensor_type, double factor,
                           bool check_finite) {
  PackResult result;
  const auto* next = static_cast<const std::byte*>(buffer);
  for (size_t i = 0; i < segments.size(); ++i) {
    move_segment(segments[i].target, tensor_type, next, buffer_type, i, segments[i].elements,
                 factor, check_finite, result);
    next += segments[i].elements * size_of(buffer_type);
  }
  return result;
}

}  // namespace perseus
