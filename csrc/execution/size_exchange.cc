#include "execution/size_exchange.h"

#include "collectives/scratch_array.h"
#include "execution/run_options.h"

namespace perseus {
namespace {

// The number of this collective in its shard; those of the operation's tensors count from 0.
constexpr uint32_t kSizes = UINT32_MAX;

const Operation* own_operation(const ShardRun& run) {
  return run.batch->operations[run.shard.operation].get();
}

}  // namespace

Task exchange_row_counts(ShardRun& run, RunContext context, std::span<int64_t> rows) {
  const Group& group = run.batch->set->group;
  const Operation* operation = own_operation(run);
  const size_t tensors = run.description().tensors.size();
  ScratchArray<int64_t> mine(context.buffers, tensors, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, group.size, tensors * sizeof(int64_t));
  if (!mine || !bytes_of) co_return out_of_scratch(tensors * sizeof(int64_t));
  for (size_t t = 0; operation != nullptr && t < tensors; ++t) {
    mine[t] = operation->description.tensors[t].shape[0];
  }
  const Status status = co_await allgather(group, collective_options(run, context, kSizes),
                                           mine.data(), rows.data(), bytes_of.span());
  co_return status;
}

Task exchange_splits(ShardRun& run, RunContext context, std::span<int64_t> send_rows,
                     std::span<int64_t> receive_rows) {
  const Group& group = run.batch->set->group;
  const Operation* operation = own_operation(run);
  const size_t size = send_rows.size();
  ScratchArray<uint64_t> send_bytes(context.buffers, size, sizeof(int64_t));
  ScratchArray<uint64_t> receive_bytes(context.buffers, size, sizeof(int64_t));
  if (!send_bytes || !receive_bytes) co_return out_of_scratch(size * sizeof(int64_t));
  for (size_t r = 0; operation != nullptr && r < size; ++r) send_rows[r] = operation->splits[r];
  const Status status =
      co_await alltoall(group, collective_options(run, context, kSizes), send_rows.data(),
                        receive_rows.data(), send_bytes.span(), receive_bytes.span());
  co_return status;
}

}  // namespace perseus
