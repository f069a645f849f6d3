#include <utility>

#include "collectives/allreduce_algorithms.h"
#include "collectives/lanes.h"
#include "collectives/running_collective.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

struct RingAllreduce : RunningReduction {
  size_t elements;
  size_t chunk_elements;

  // Chunk `index` of the part of the rank `places` before this one.
  Range chunk(int places, size_t index) const {
    const int size = group().size;
    const int part = ((group().index - places) % size + size) % size;
    return chunk_of(even_part(elements, size, part), chunk_elements, index);
  }
  size_t at(Range range) const { return range.begin * element_size; }
  size_t bytes(Range range) const { return range.size * element_size; }
};

// Sends one chunk to the next rank while another arrives from the rank before.
Task pass_on(const RingAllreduce& run, uint32_t step, const std::byte* from, Range outgoing,
             Range incoming, const Reduction* reduction) {
  return run.exchange(
      step, {run.rank_after(1), from + run.at(outgoing), run.bytes(outgoing)},
      {run.rank_before(1), run.out + run.at(incoming), run.bytes(incoming), reduction});
}

// Sends one chunk of every rank's part round the ring twice: to reduce it, and to distribute it.
Task reduce_round_ring(const RingAllreduce& run, size_t chunk) {
  const int hops = run.group().size - 1;
  uint32_t step = chunk * 2 * hops;
  // Each chunk starts at the rank after its owner, and is reduced on its way to the owner.
  for (int hop = 0; hop < hops; ++hop, ++step) {
    const Range incoming = run.chunk(hop + 2, chunk);
    convert(run.out + run.at(incoming), run.type, run.in + run.at(incoming), run.type,
            incoming.size);
    Task passed = pass_on(run, step, hop == 0 ? run.in : run.out, run.chunk(hop + 1, chunk),
                          incoming, &run.reduction);
    Status status = co_await std::move(passed);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  const Range own = run.chunk(0, chunk);
  std::byte* reduced = run.out + run.at(own);
  scale(reduced, reduced, own.size, run.type, run.factor);
  for (int hop = 0; hop < hops; ++hop, ++step) {
    Task passed =
        pass_on(run, step, run.out, run.chunk(hop, chunk), run.chunk(hop + 1, chunk), nullptr);
    Status status = co_await std::move(passed);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  co_return Status::ok();
}

}  // namespace

Task allreduce_ring(const Group& group, CollectiveOptions options, const void* in, void* out,
                    size_t elements, DataType type, ReduceOp op, double factor) {
  const double early = early_factor(type, op, factor, group.size);
  if (early != 1.0) {
    scale(out, in, elements, type, early);
    in = out;
    factor /= early;
  }
  const size_t longest = even_part(elements, group.size, 0).size;
  const uint32_t steps_per_chunk = 2 * (group.size - 1);
  const size_t chunk = chunk_elements(group, longest, size_of(type), steps_per_chunk);
  const RingAllreduce run{
      {group, options, in, out, type, reduction(type, op), factor}, elements, chunk};
  const auto chunk_task = [&run](size_t index) { return reduce_round_ring(run, index); };
  Task lanes = run_in_lanes(run.buffers(), divide_up(longest, chunk), kDefaultLanes, chunk_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
