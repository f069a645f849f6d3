// Segments of the buffer go through the three phases side by side, so that the wire between hosts
// is busy with one segment while the next is reduced inside the host.
#include <algorithm>

#include "collectives/allreduce_algorithms.h"
#include "collectives/lanes.h"
#include "collectives/message.h"

namespace perseus {
namespace {

constexpr size_t kSegmentBytesPerRank = 512 << 10;
constexpr size_t kLanes = 4;
constexpr uint32_t kPhases = 3;
// Every segment's phases have step numbers of their own.
constexpr size_t kMostSegments = 40;
static_assert(kMostSegments * kPhases * uint64_t{kStepsPerPart} <= kStepsPerCollective);

struct Job {
  const HostSplit& split;
  CollectiveOptions options;
  const std::byte* in;
  std::byte* out;
  size_t elements;
  int segments;
  DataType type;
  size_t element_size;
  ReduceOp op;
  double local_factor;
  double across_factor;
};

Task reduce_segment(const Job& job, size_t index) {
  const Group& local = job.split.local;
  const Range segment = even_part(job.elements, job.segments, index);
  const std::byte* in = job.in + segment.begin * job.element_size;
  std::byte* out = job.out + segment.begin * job.element_size;
  ScratchArray<Range> parts(*job.options.buffers, local.size);
  ScratchArray<uint64_t> bytes_of(*job.options.buffers, local.size);
  if (!parts || !bytes_of) co_return out_of_scratch(local.size * sizeof(Range));
  for (int i = 0; i < local.size; ++i) {
    const Range part = even_part(segment.size, local.size, i);
    parts.emplace(part);
    bytes_of.emplace(part.size * job.element_size);
  }
  const Range own = parts[local.index];
  std::byte* own_out = out + own.begin * job.element_size;
  const uint32_t first_part = index * kPhases;

  Task scatter = reduce_scatter_direct(local, options_of_part(job.options, first_part), in, own_out,
                                       parts.span(), job.type, job.op, job.local_factor);
  Status status = co_await std::move(scatter);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  Task across =
      allreduce(job.split.across, options_of_part(job.options, first_part + 1), own_out, own_out,
                own.size, job.type, job.op, AllreduceAlgorithm::kAuto, job.across_factor);
  status = co_await std::move(across);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  Task gather =
      allgather(local, options_of_part(job.options, first_part + 2), own_out, out, bytes_of.span());
  status = co_await std::move(gather);
  co_return status;
}

}  // namespace

Task allreduce_hierarchical(const Group& group, CollectiveOptions options, const void* in,
                            void* out, size_t elements, DataType type, ReduceOp op, double factor) {
  if (group.by_host == nullptr) {
    co_return Status::invalid_argument(
        "hierarchical allreduce needs the same number of ranks on every host");
  }
  const double local_factor = early_factor(type, op, factor, group.by_host->local.size);
  Job job{*group.by_host,
          options,
          static_cast<const std::byte*>(in),
          static_cast<std::byte*>(out),
          elements,
          1,
          type,
          size_of(type),
          op,
          local_factor,
          factor / local_factor};
  const size_t segment_bytes = kSegmentBytesPerRank * job.split.local.size;
  job.segments =
      std::clamp(divide_up(elements * size_of(type), segment_bytes), size_t{1}, kMostSegments);
  const auto segment_task = [&job](size_t index) { return reduce_segment(job, index); };
  Task lanes = run_in_lanes(*options.buffers, job.segments, kLanes, segment_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
