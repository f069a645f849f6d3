#include "collectives/allreduce_algorithms.h"
#include "collectives/lanes.h"
#include "collectives/message.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

constexpr size_t kLanes = 4;

struct Job {
  const Group& group;
  Wire wire;
  const std::byte* in;
  std::byte* out;
  size_t elements;
  size_t chunk_elements;
  DataType type;
  size_t element_size;
  Reduction reduction;
  double factor;

  // Chunk `index` of the part of the rank `places` before this one.
  Range chunk(int places, size_t index) const {
    const int part = ((group.index - places) % group.size + group.size) % group.size;
    return chunk_of(even_part(elements, group.size, part), chunk_elements, index);
  }
  size_t at(Range range) const { return range.begin * element_size; }
  size_t bytes(Range range) const { return range.size * element_size; }
};

// Sends one chunk to the next rank while another arrives from the rank before.
Task pass_on(const Job& job, uint32_t step, const std::byte* from, Range outgoing, Range incoming,
             const Reduction* reduction) {
  const int next = (job.group.index + 1) % job.group.size;
  const int previous = (job.group.index + job.group.size - 1) % job.group.size;
  Message sending, receiving;
  job.wire.receive(receiving, previous, step, job.out + job.at(incoming), job.bytes(incoming),
                   reduction);
  job.wire.send(sending, next, step, from + job.at(outgoing), job.bytes(outgoing));
  Status sent = co_await sending;
  Status received = co_await receiving;
  keep_first_error(sent, received);
  co_return sent;
}

// One chunk of every rank's part all the way round, twice.
Task reduce_chunk(const Job& job, size_t chunk) {
  const int hops = job.group.size - 1;
  uint32_t step = chunk * 2 * hops;
  // Each chunk starts at the rank after its owner and gathers inputs on the way to it.
  for (int hop = 0; hop < hops; ++hop, ++step) {
    const Range incoming = job.chunk(hop + 2, chunk);
    convert(job.out + job.at(incoming), job.type, job.in + job.at(incoming), job.type,
            incoming.size);
    Task passed = pass_on(job, step, hop == 0 ? job.in : job.out, job.chunk(hop + 1, chunk),
                          incoming, &job.reduction);
    Status status = co_await std::move(passed);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  const Range own = job.chunk(0, chunk);
  std::byte* reduced = job.out + job.at(own);
  scale(reduced, reduced, own.size, job.type, job.factor);
  for (int hop = 0; hop < hops; ++hop, ++step) {
    Task passed =
        pass_on(job, step, job.out, job.chunk(hop, chunk), job.chunk(hop + 1, chunk), nullptr);
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
  const Job job{group,
                Wire(group, options),
                static_cast<const std::byte*>(in),
                static_cast<std::byte*>(out),
                elements,
                chunk,
                type,
                size_of(type),
                reduction(type, op),
                factor};
  const auto chunk_task = [&job](size_t index) { return reduce_chunk(job, index); };
  Task lanes = run_in_lanes(*options.buffers, divide_up(longest, chunk), kLanes, chunk_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
