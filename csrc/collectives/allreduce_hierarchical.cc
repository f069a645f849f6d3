// Segments of the buffer go through the three phases side by side, so that the wire between hosts
// is busy with one segment while the next is reduced inside the host. Inside one host, the caches
// over its ranks are in the place of hosts.
#include <algorithm>
#include <utility>

#include "collectives/allreduce_algorithms.h"
#include "collectives/lanes.h"
#include "collectives/scratch_array.h"

namespace perseus {
namespace {

constexpr size_t kSegmentBytesPerRank = 512 << 10;
constexpr uint32_t kPhases = 3;
// Every phase of every segment has step numbers of its own.
constexpr size_t kMostSegments = 40;
static_assert(kMostSegments * kPhases * uint64_t{kStepsPerPart} <= kStepsPerCollective);

struct HierarchicalAllreduce {
  const GroupSplit& split;
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

Task reduce_segment(const HierarchicalAllreduce& run, size_t index) {
  const Group& local = run.split.local;
  const Range segment = even_part(run.elements, run.segments, index);
  const std::byte* in = run.in + segment.begin * run.element_size;
  std::byte* out = run.out + segment.begin * run.element_size;
  ScratchArray<Range> parts(*run.options.buffers, local.size);
  ScratchArray<uint64_t> bytes_of(*run.options.buffers, local.size);
  if (!parts || !bytes_of) co_return out_of_scratch(local.size * sizeof(Range));
  for (int i = 0; i < local.size; ++i) {
    const Range part = even_part(segment.size, local.size, i);
    parts.emplace(part);
    bytes_of.emplace(part.size * run.element_size);
  }
  const Range own = parts[local.index];
  std::byte* own_out = out + own.begin * run.element_size;
  const uint32_t first_part = index * kPhases;

  Task scatter = reduce_scatter_direct(local, options_of_part(run.options, first_part), in, own_out,
                                       parts.span(), run.type, run.op, run.local_factor);
  Status status = co_await std::move(scatter);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  Task across =
      allreduce(run.split.across, options_of_part(run.options, first_part + 1), own_out, own_out,
                own.size, run.type, run.op, AllreduceAlgorithm::kAuto, run.across_factor);
  status = co_await std::move(across);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  Task gather =
      allgather(local, options_of_part(run.options, first_part + 2), own_out, out, bytes_of.span());
  status = co_await std::move(gather);
  co_return status;
}

}  // namespace

Task allreduce_hierarchical(const Group& group, CollectiveOptions options, const void* in,
                            void* out, size_t elements, DataType type, ReduceOp op, double factor) {
  const GroupSplit* levels = levels_of(group);
  if (levels == nullptr) {
    co_return Status::invalid_argument(
        "hierarchical allreduce needs the same number of ranks on every host");
  }
  const double local_factor = early_factor(type, op, factor, levels->local.size);
  HierarchicalAllreduce run{*levels,
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
  const size_t segment_bytes = kSegmentBytesPerRank * run.split.local.size;
  run.segments =
      std::clamp(divide_up(elements * size_of(type), segment_bytes), size_t{1}, kMostSegments);
  const auto segment_task = [&run](size_t index) { return reduce_segment(run, index); };
  Task lanes = run_in_lanes(*options.buffers, run.segments, kDefaultLanes, segment_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
