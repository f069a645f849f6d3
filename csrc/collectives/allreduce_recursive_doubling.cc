// If the group's size is not a power of two, the first ranks pair up and one of each pair sits out;
// see Folding. A rank's block of inputs is always a run of neighbours, and the lower block is
// always the left operand, so both partners compute the same bits at every hop.
#include <utility>

#include "collectives/allreduce_algorithms.h"
#include "collectives/folding.h"
#include "collectives/running_collective.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// Steps: those of folding, then one for each hop.
constexpr uint32_t kFirstHopStep = kFirstStepAfterFolding;

// Blocks travel as float32 for 16-bit floats. That doubles the bytes, which hardly matter at these
// sizes, and rounds once instead of at each hop.
struct DoublingAllreduce : RunningCollective {
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

// The odd rank of a pair sends its input and awaits the result.
Task sit_out(DoublingAllreduce& run, int partner) {
  Message outgoing, result;
  run.send(outgoing, partner, kPairStep, run.mine, run.bytes);
  Status sent = co_await outgoing;
  PERSEUS_CO_RETURN_IF_ERROR(sent);
  run.receive(result, partner, kResultStep, run.mine, run.bytes);
  Status received = co_await result;
  co_return received;
}

Task reduce_blocks(DoublingAllreduce& run) {
  const int index = run.group().index;
  const Folding folding(run.group().size);
  const bool is_paired = folding.is_paired(index);
  if (folding.sits_out(index)) {
    Task sitting_out = sit_out(run, index - 1);
    Status status = co_await std::move(sitting_out);
    co_return status;
  }
  if (is_paired) {
    Message incoming;
    run.receive(incoming, index + 1, kPairStep, run.theirs, run.bytes);
    Status received = co_await incoming;
    PERSEUS_CO_RETURN_IF_ERROR(received);
    run.combine(/*mine_is_lower=*/true);
  }

  const int id = folding.id_of(index);
  uint32_t step = kFirstHopStep;
  for (int mask = 1; mask < folding.power(); mask <<= 1, ++step) {
    const int partner_id = id ^ mask;
    const int partner = folding.index_of(partner_id);
    Task exchanged =
        run.exchange(step, {partner, run.mine, run.bytes}, {partner, run.theirs, run.bytes});
    Status status = co_await std::move(exchanged);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    run.combine(/*mine_is_lower=*/id < partner_id);
  }

  if (is_paired) {
    Message result;
    run.send(result, index + 1, kResultStep, run.mine, run.bytes);
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
  DoublingAllreduce run{{group, options}, scratch.data(), scratch.data() + bytes,
                        elements,         bytes,          reduction(wide_type, op)};
  convert(run.mine, wide_type, in, type, elements);
  Task reduced = reduce_blocks(run);
  Status status = co_await std::move(reduced);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  scale_convert(out, type, run.mine, wide_type, elements, factor);
  co_return Status::ok();
}

}  // namespace perseus
