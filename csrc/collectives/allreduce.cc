#include <algorithm>
#include <cmath>

#include "collectives/allreduce_algorithms.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Small buffers go directly only in groups up to this size, even inside one host. In larger groups
// that many messages cost more than a few more hops.
constexpr int kDirectLatencyRanks = 8;
// Up to this size the number of hops decides how long it takes, above it the number of bytes. That
// holds for caches inside a host, too. In the shapes that benchmarks/sockets.py simulates, from 2
// to 8 caches with 2 to 16 ranks each, hierarchical is faster for a shard above this size, or with
// 2 ranks under each of 2 caches as fast.
constexpr size_t kLatencyBytes = 64 << 10;

Task copy_alone(const void* in, void* out, size_t elements, DataType type, double factor) {
  scale(out, in, elements, type, factor);
  co_return Status::ok();
}

}  // namespace

AllreduceAlgorithm choose_allreduce(const Group& group, size_t bytes) {
  if (bytes > kLatencyBytes && can_be_hierarchical(group)) return AllreduceAlgorithm::kHierarchical;
  return choose_flat_allreduce(group, bytes);
}

AllreduceAlgorithm choose_flat_allreduce(const Group& group, size_t bytes) {
  const bool is_small = bytes <= kLatencyBytes;
  if (is_small && group.size > kDirectLatencyRanks) return AllreduceAlgorithm::kRecursiveDoubling;
  return is_small_group(group) ? AllreduceAlgorithm::kDirect : AllreduceAlgorithm::kRing;
}

double early_factor(DataType type, ReduceOp op, double factor, int ranks) {
  // bfloat16 has the range of the float32 that it is accumulated in.
  if (type != DataType::kFloat16 || op != ReduceOp::kSum) return 1.0;
  return std::clamp(std::abs(factor), 1.0 / ranks, 1.0);
}

Task allreduce(const Group& group, CollectiveOptions options, const void* in, void* out,
               size_t elements, DataType type, ReduceOp op, AllreduceAlgorithm algorithm,
               double factor) {
  if (group.size == 1 || elements == 0) return copy_alone(in, out, elements, type, factor);
  if (algorithm == AllreduceAlgorithm::kAuto) {
    algorithm = choose_allreduce(group, elements * size_of(type));
  }
  switch (algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return allreduce_recursive_doubling(group, options, in, out, elements, type, op, factor);
    case AllreduceAlgorithm::kRing:
      return allreduce_ring(group, options, in, out, elements, type, op, factor);
    case AllreduceAlgorithm::kHierarchical:
      return allreduce_hierarchical(group, options, in, out, elements, type, op, factor);
    case AllreduceAlgorithm::kAuto:
    case AllreduceAlgorithm::kDirect: break;
  }
  return allreduce_direct(group, options, in, out, elements, type, op, factor);
}

}  // namespace perseus
