// With p the largest power of two within the group, the first 2 (size - p) ranks pair up first and
// one of each pair sits out. A rank's block of inputs is always a run of neighbours, and the lower
// block is always the left operand, so both partners compute the same bits at every hop.
#include <utility>

#include "collectives/allreduce_algorithms.h"
#include "collectives/folding.h"
#include "collectives/message.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Steps: one for pairing up, one a hop, and the result for who sat out.
constexpr uint32_t kPairStep = 0;
constexpr uint32_t kResultStep = 1;
constexpr uint32_t kFirstHopStep = 2;

// The blocks as they travel: float32 for 16-bit floats, which doubles bytes that hardly matter at
// these sizes and rounds once instead of once a hop.
struct Blocks {
  Wire wire;
  std::byte* mine;
  std::byte* theirs;
  size_t elements;
  uint64_t bytes;
  Reduction reduction;

  // mine = lower op higher
  void combine(bool mine_is_lower) {
    if (!mine_is_lower) std::swap(mine, theirs);
    reduction.kernel(mine, theirs, elements);
  }
};

// Exchanges blocks with `partner` and combines them.
Task exchange(Blocks& blocks, int partner, uint32_t step, bool mine_is_lower) {
  Message outgoing, incoming;
  blocks.wire.receive(incoming, partner, step, blocks.theirs, blocks.bytes);
  blocks.wire.send(outgoing, partner, step, blocks.mine, blocks.bytes);
  Status sent = co_await outgoing;
  Status received = co_await incoming;
  PERSEUS_CO_RETURN_IF_ERROR(sent);
  PERSEUS_CO_RETURN_IF_ERROR(received);
  blocks.combine(mine_is_lower);
  co_return Status::ok();
}

// For the odd one of a pair: hands its input over and awaits the result.
Task sit_out(Blocks& blocks, int partner) {
  Message outgoing, result;
  blocks.wire.send(outgoing, partner, kPairStep, blocks.mine, blocks.bytes);
  Status sent = co_await outgoing;
  PERSEUS_CO_RETURN_IF_ERROR(sent);
  blocks.wire.receive(result, partner, kResultStep, blocks.mine, blocks.bytes);
  Status received = co_await result;
  co_return received;
}

Task reduce_blocks(Blocks& blocks, int index, int size) {
  const Folding folding(size);
  const bool is_paired = folding.is_paired(index);
  if (folding.sits_out(index)) {
    Task sitting_out = sit_out(blocks, index - 1);
    Status status = co_await std::move(sitting_out);
    co_return status;
  }
  if (is_paired) {
    Message incoming;
    blocks.wire.receive(incoming, index + 1, kPairStep, blocks.theirs, blocks.bytes);
    Status received = co_await incoming;
    PERSEUS_CO_RETURN_IF_ERROR(received);
    blocks.combine(/*mine_is_lower=*/true);
  }

  const int id = folding.id_of(index);
  uint32_t step = kFirstHopStep;
  for (int mask = 1; mask < folding.power(); mask <<= 1, ++step) {
    const int partner_id = id ^ mask;
    Task hop = exchange(blocks, folding.index_of(partner_id), step, id < partner_id);
    Status status = co_await std::move(hop);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }

  if (is_paired) {
    Message result;
    blocks.wire.send(result, index + 1, kResultStep, blocks.mine, blocks.bytes);
    Status sent = co_await result;
    co_return sent;
  }
  co_return Status::ok();
}

}  // namespace

Task allreduce_recursive_doubling(const Group& group, CollectiveOptions options, const void* in,
                                  void* out, size_t elements, DataType type, ReduceOp op,
                                  double factor) {
  const DataType wide_type = accumulator_type(type);
  const size_t bytes = elements * size_of(wide_type);
  Buffer scratch = options.buffers->take(2 * bytes);
  if (!scratch) co_return out_of_scratch(2 * bytes);
  Blocks blocks{Wire(group, options),    scratch.data(), scratch.data() + bytes, elements, bytes,
                reduction(wide_type, op)};
  convert(blocks.mine, wide_type, in, type, elements);
  Task reduced = reduce_blocks(blocks, group.index, group.size);
  Status status = co_await std::move(reduced);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  scale_convert(out, type, blocks.mine, wide_type, elements, factor);
  co_return Status::ok();
}

}  // namespace perseus
