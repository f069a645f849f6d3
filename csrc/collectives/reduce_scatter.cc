#include <cstring>

#include "collectives/allreduce_algorithms.h"
#include "collectives/scratch_array.h"

namespace perseus {
namespace {

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Task reduce_scatter(const Group& group, CollectiveOptions options, const void* in, void* out,
                    std::span<const uint64_t> elements_of, DataType type, ReduceOp op,
                    double factor) {
  ScratchArray<Range> parts(*options.buffers, group.size);
  if (!parts) co_return out_of_scratch(group.size * sizeof(Range));
  size_t total = 0;
  for (uint64_t elements : elements_of) {
    parts.emplace(Range{total, elements});
    total += elements;
  }
  const size_t element_size = size_of(type);
  const Range own = parts[group.index];
  const size_t own_bytes = own.size * element_size;
  const auto* input = static_cast<const std::byte*>(in);
  auto* output = static_cast<std::byte*>(out);

  // An output that overlaps other ranks' parts of the input may be written only after those are
  // sent.
  Buffer staging;
  if (output != input + own.begin * element_size &&
      overlap(output, own_bytes, input, total * element_size)) {
    staging = options.buffers->take(own_bytes);
    if (!staging) co_return out_of_scratch(own_bytes);
  }
  Task reduced = reduce_scatter_direct(group, options, in, staging ? staging.data() : out,
                                       parts.span(), type, op, factor);
  Status status = co_await std::move(reduced);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (staging) std::memcpy(out, staging.data(), own_bytes);
  co_return Status::ok();
}

}  // namespace perseus
