// Rank i owns part i of the buffer: it alone reduces it, so that all ranks get the same bits.
//
// The order of the reduction is fixed too, so that a run can be repeated to the bit: for chunk c
// the owner folds in its own input, then that of the ranks in order from (c mod (size - 1)) + 1
// places after it. It awaits one rank at a time and folds the bytes in as they come out of the
// link, without storing them. Chunks that run side by side begin with different ranks, so that all
// links are busy although each chunk uses one at a time. A sender begins a chunk's next message
// when it has received its own, so that data rarely arrive before they are awaited.
#include <algorithm>
#include <utility>

#include "collectives/allreduce_algorithms.h"
#include "collectives/lanes.h"
#include "collectives/reduce_in_order.h"
#include "collectives/running_collective.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Up to these sizes, one hop with all the data is faster than two with a part of it.
constexpr size_t kOneHopBytes = 16 << 10;
constexpr size_t kOneHopTotalBytes = 64 << 10;

constexpr uint32_t kStepsPerChunk = 2;  // a contribution and a result

struct DirectReduction : RunningReduction {
  bool distribute;  // `out` is the whole buffer; else it is this rank's part only
  std::span<const Range> parts;
  size_t chunk_elements;

  Range chunk(int owner, size_t index) const {
    return chunk_of(parts[owner], chunk_elements, index);
  }
  const std::byte* input(Range range) const { return in + range.begin * element_size; }
  std::byte* output(Range range) const {
    const size_t begin = distribute ? range.begin : range.begin - parts[group().index].begin;
    return out + begin * element_size;
  }
  bool is_wide() const { return reduction.accumulator_size != element_size; }
};

size_t lane_count(int size) { return std::clamp<size_t>(size - 1, 4, 8); }

// Copies this rank's input to where the others' are folded in: the output itself, or `wide`, a
// buffer of float32. Returns that place.
std::byte* begin_accumulation(const DirectReduction& run, Range own, const Buffer& wide) {
  std::byte* accumulator = wide ? wide.data() : run.output(own);
  convert(accumulator, wide ? DataType::kFloat32 : run.type, run.input(own), run.type, own.size);
  return accumulator;
}

Task reduce_own_chunk(const DirectReduction& run, size_t chunk) {
  const int index = run.group().index;
  const int size = run.group().size;
  const Range own = run.chunk(index, chunk);
  const uint32_t contribution_step = chunk * kStepsPerChunk;
  const uint32_t result_step = contribution_step + 1;

  Buffer wide;
  if (run.is_wide()) {
    wide = run.buffers().take(own.size * run.reduction.accumulator_size);
    if (!wide) co_return out_of_scratch(own.size * run.reduction.accumulator_size);
  }
  ScratchArray<Message> results(run.buffers(), 2 * size);
  if (!results) co_return out_of_scratch(2 * size * sizeof(Message));

  std::byte* accumulator = begin_accumulation(run, own, wide);
  SharedPayload result(size - 1);
  Status status;
  for (int step = 0; step < size - 1 && status.is_ok(); ++step) {
    const int distance = 1 + (chunk + step) % (size - 1);
    const int from = run.rank_after(distance);
    const int to = run.rank_before(distance);
    const Range theirs = run.chunk(to, chunk);
    Message contribution, arriving;
    run.send(contribution, to, contribution_step, run.input(theirs),
             theirs.size * run.element_size);
    run.receive(arriving, from, contribution_step, accumulator, own.size * run.element_size,
                &run.reduction);
    Status sent = co_await contribution;
    // Only now may the result overwrite the contribution: `in` may be `out`.
    if (run.distribute && sent.is_ok()) {
      run.receive(results.emplace(), to, result_step, run.output(theirs),
                  theirs.size * run.element_size);
    }
    Status received = co_await arriving;
    keep_first_error(status, sent);
    keep_first_error(status, received);
  }
  if (status.is_ok()) {
    scale_convert(run.output(own), run.type, accumulator, wide ? DataType::kFloat32 : run.type,
                  own.size, run.factor);
    for (int distance = 1; run.distribute && distance < size; ++distance) {
      run.send(results.emplace(), run.rank_after(distance), result_step, run.output(own),
               own.size * run.element_size, result);
    }
  }
  Task all_moved = await_all(results.span());
  Status moved = co_await std::move(all_moved);
  keep_first_error(status, moved);
  co_return status;
}

// The first hop of the two-hop algorithm and, if `distribute`, the second. Parts may have any
// sizes.
Task reduce_parts(const Group& group, CollectiveOptions options, const void* in, void* out,
                  bool distribute, std::span<const Range> parts, DataType type, ReduceOp op,
                  double factor) {
  size_t longest = 0;
  for (const Range& part : parts) longest = std::max(longest, part.size);
  const size_t chunk = chunk_elements(group, longest, size_of(type), kStepsPerChunk);
  const DirectReduction run{
      {group, options, in, out, type, wide_reduction(type, op), factor}, distribute, parts, chunk};
  const auto chunk_task = [&run](size_t index) { return reduce_own_chunk(run, index); };
  Task lanes =
      run_in_lanes(run.buffers(), divide_up(longest, chunk), lane_count(group.size), chunk_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

Task allreduce_two_hops(const Group& group, CollectiveOptions options, const void* in, void* out,
                        size_t elements, DataType type, ReduceOp op, double factor) {
  ScratchArray<Range> parts(*options.buffers, group.size);
  if (!parts) co_return out_of_scratch(group.size * sizeof(Range));
  for (int i = 0; i < group.size; ++i) parts.emplace(even_part(elements, group.size, i));
  Task reduced =
      reduce_parts(group, options, in, out, /*distribute=*/true, parts.span(), type, op, factor);
  Status status = co_await std::move(reduced);
  co_return status;
}

Task allreduce_one_hop(const Group& group, CollectiveOptions options, const void* in, void* out,
                       size_t elements, DataType type, ReduceOp op, double factor) {
  const RunningCollective run(group, options);
  const size_t bytes = elements * size_of(type);
  const DataType wide_type = accumulator_type(type);
  // The accumulator, followed by the ranks' inputs.
  const size_t accumulator_bytes = elements * size_of(wide_type);
  Buffer scratch = options.buffers->take(accumulator_bytes + bytes * group.size);
  if (!scratch) co_return out_of_scratch(accumulator_bytes + bytes * group.size);
  ScratchArray<Message> messages(*options.buffers, 2 * group.size);
  if (!messages) co_return out_of_scratch(2 * group.size * sizeof(Message));

  std::byte* arrived = scratch.data() + accumulator_bytes;
  for (int distance = 1; distance < group.size; ++distance) {
    const int from = run.rank_after(distance);
    run.receive(messages.emplace(), from, 0, arrived + from * bytes, bytes);
  }
  for (int distance = 1; distance < group.size; ++distance) {
    run.send(messages.emplace(), run.rank_before(distance), 0, in, bytes);
  }
  Task all_moved = await_all(messages.span());
  Status status = co_await std::move(all_moved);
  PERSEUS_CO_RETURN_IF_ERROR(status);

  reduce_in_order(scratch.data(), group.size, elements, type, op, [&](int index) {
    return index == group.index ? static_cast<const std::byte*>(in) : arrived + index * bytes;
  });
  scale_convert(out, type, scratch.data(), wide_type, elements, factor);
  co_return Status::ok();
}

}  // namespace

Task allreduce_direct(const Group& group, CollectiveOptions options, const void* in, void* out,
                      size_t elements, DataType type, ReduceOp op, double factor) {
  const size_t bytes = elements * size_of(type);
  if (bytes <= kOneHopBytes && bytes * (group.size - 1) <= kOneHopTotalBytes) {
    return allreduce_one_hop(group, options, in, out, elements, type, op, factor);
  }
  return allreduce_two_hops(group, options, in, out, elements, type, op, factor);
}

Task reduce_scatter_direct(const Group& group, CollectiveOptions options, const void* in, void* out,
                           std::span<const Range> parts, DataType type, ReduceOp op,
                           double factor) {
  return reduce_parts(group, options, in, out, /*distribute=*/false, parts, type, op, factor);
}

}  // namespace perseus
