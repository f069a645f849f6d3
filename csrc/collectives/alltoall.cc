// Pairwise exchange: at distance d everyone sends to the rank d after it and receives from the rank
// d before it, so that no rank is everybody's target at once.
#include <cstring>
#include <utility>

#include "collectives/collective.h"
#include "collectives/lanes.h"
#include "collectives/parts.h"
#include "collectives/running_collective.h"

namespace perseus {
namespace {

constexpr size_t kPairsAtOnce = 4;

struct PairwiseAlltoall : RunningCollective {
  const std::byte* in;
  std::byte* out;
  std::span<const uint64_t> send_bytes;
  std::span<const uint64_t> receive_bytes;
};

Task copy_own_block(const std::byte* source, std::byte* target, uint64_t bytes) {
  if (bytes != 0) std::memcpy(target, source, bytes);
  co_return Status::ok();
}

// At distance 0 there is only the block that this rank keeps.
Task exchange_blocks(const PairwiseAlltoall& run, int distance) {
  const int to = run.rank_after(distance);
  const int from = run.rank_before(distance);
  const std::byte* source = run.in + offset_of(run.send_bytes, to);
  std::byte* target = run.out + offset_of(run.receive_bytes, from);
  if (distance == 0) return copy_own_block(source, target, run.send_bytes[to]);
  return run.exchange(0, {to, source, run.send_bytes[to]}, {from, target, run.receive_bytes[from]});
}

}  // namespace

Task alltoall(const Group& group, CollectiveOptions options, const void* in, void* out,
              std::span<const uint64_t> send_bytes, std::span<const uint64_t> receive_bytes) {
  const PairwiseAlltoall run{{group, options},
                             static_cast<const std::byte*>(in),
                             static_cast<std::byte*>(out),
                             send_bytes,
                             receive_bytes};
  const auto pair_task = [&run](size_t distance) {
    return exchange_blocks(run, static_cast<int>(distance));
  };
  Task lanes = run_in_lanes(run.buffers(), group.size, kPairsAtOnce, pair_task);
  Status status = co_await std::move(lanes);
  co_return status;
}

}  // namespace perseus
