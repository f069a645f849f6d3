#include <algorithm>

#include "collectives/allreduce_algorithms.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Up to here everyone speaks to everyone; beyond, that many messages cost more than more hops.
constexpr int kDirectRanks = 8;
// A group within one host has no wire to spare: direct reads and writes memory least.
constexpr int kDirectLocalRanks = 32;
// Below this the number of hops decides, above it the number of bytes.
constexpr size_t kLatencyBytes = 64 << 10;

Task copy_alone(const void* in, void* out, size_t elements, DataType type) {
  convert(out, type, in, type, elements);
  co_return Status::ok();
}

}  // namespace

AllreduceAlgorithm choose_allreduce(const Group& group, size_t bytes) {
  const int hosts = host_count(group);
  const bool is_small = bytes <= kLatencyBytes;
  if (is_small && group.size > kDirectRanks) return AllreduceAlgorithm::kRecursiveDoubling;
  if (!is_small && hosts > 1 && hosts < group.size && group.by_host != nullptr) {
    return AllreduceAlgorithm::kHierarchical;
  }
  const int most = hosts == 1 ? kDirectLocalRanks : kDirectRanks;
  return group.size <= most ? AllreduceAlgorithm::kDirect : AllreduceAlgorithm::kRing;
}

Task allreduce(const Group& group, Call call, const void* in, void* out, size_t elements,
               DataType type, ReduceOp op, AllreduceAlgorithm algorithm) {
  if (group.size == 1 || elements == 0) return copy_alone(in, out, elements, type);
  if (algorithm == AllreduceAlgorithm::kAuto) {
    algorithm = choose_allreduce(group, elements * size_of(type));
  }
  switch (algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return allreduce_recursive_doubling(group, call, in, out, elements, type, op);
    case AllreduceAlgorithm::kRing: return allreduce_ring(group, call, in, out, elements, type, op);
    case AllreduceAlgorithm::kHierarchical:
      return allreduce_hierarchical(group, call, in, out, elements, type, op);
    case AllreduceAlgorithm::kAuto:
    case AllreduceAlgorithm::kDirect: break;
  }
  return allreduce_direct(group, call, in, out, elements, type, op);
}

}  // namespace perseus
