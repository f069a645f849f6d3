#include "execution/unsharded_run.h"

#include <numeric>

#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"
#include "execution/finite_check.h"
#include "execution/host_tensor.h"
#include "execution/results.h"
#include "execution/run_options.h"
#include "execution/size_exchange.h"

namespace perseus {
namespace {

Task run_allgather(ShardRun& run, RunContext context) {
  const Group& group = run.batch->set->group;
  Operation* operation = run.batch->operations[run.shard.operation].get();
  const std::vector<TensorDescription>& agreed = run.description().tensors;
  const size_t tensors = agreed.size();

  ScratchArray<int64_t> rows(context.buffers, tensors * group.size, 0);
  ScratchArray<uint64_t> bytes_of(context.buffers, group.size, uint64_t{0});
  if (!rows || !bytes_of) co_return out_of_scratch(rows.size() * sizeof(int64_t));
  Status status = co_await exchange_row_counts(run, context, rows.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);

  for (size_t t = 0; t < tensors; ++t) {
    int64_t total = 0;
    for (int r = 0; r < group.size; ++r) {
      const int64_t of_rank = rows[r * tensors + t];
      total += of_rank;
      bytes_of[r] = static_cast<uint64_t>(of_rank) * row_bytes(agreed[t]);
    }
    const uint64_t bytes = static_cast<uint64_t>(total) * row_bytes(agreed[t]);
    // A rank that has joined helps to move data that it does not keep.
    HostTensor tensor(run, context, t);
    status = co_await tensor.fetch(bytes_of[group.index]);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    status = co_await tensor.make_room(bytes);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    status = co_await allgather(group, collective_options(run, context, static_cast<uint32_t>(t)),
                                tensor.input(), tensor.output(), bytes_of.span());
    PERSEUS_CO_RETURN_IF_ERROR(status);
    status = co_await tensor.deliver(bytes);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    if (operation != nullptr) set_result_rows(operation->tensors[t], agreed[t], total);
  }
  co_return Status::ok();
}

Task run_alltoall(ShardRun& run, RunContext context) {
  const Group& group = run.batch->set->group;
  Operation* operation = run.batch->operations[run.shard.operation].get();
  const TensorDescription& agreed = run.description().tensors.front();
  const auto size = static_cast<size_t>(group.size);

  ScratchArray<int64_t> send_rows(context.buffers, size, 0);
  ScratchArray<int64_t> receive_rows(context.buffers, size, 0);
  ScratchArray<uint64_t> send_bytes(context.buffers, size, uint64_t{0});
  ScratchArray<uint64_t> receive_bytes(context.buffers, size, uint64_t{0});
  if (!send_rows || !receive_rows || !send_bytes || !receive_bytes) {
    co_return out_of_scratch(size * sizeof(int64_t));
  }
  Status status = co_await exchange_splits(run, context, send_rows.span(), receive_rows.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);

  int64_t total = 0;
  for (size_t r = 0; r < size; ++r) {
    send_bytes[r] = static_cast<uint64_t>(send_rows[r]) * row_bytes(agreed);
    receive_bytes[r] = static_cast<uint64_t>(receive_rows[r]) * row_bytes(agreed);
    total += receive_rows[r];
  }
  const uint64_t bytes = static_cast<uint64_t>(total) * row_bytes(agreed);
  HostTensor tensor(run, context, 0);
  status = co_await tensor.fetch(
      std::accumulate(send_bytes.data(), send_bytes.data() + size, uint64_t{0}));
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await tensor.make_room(bytes);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await alltoall(group, collective_options(run, context, 0), tensor.input(),
                             tensor.output(), send_bytes.span(), receive_bytes.span());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  status = co_await tensor.deliver(bytes);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (operation != nullptr) {
    set_result_rows(operation->tensors.front(), agreed, total);
    operation->received_splits.assign(receive_rows.span().begin(), receive_rows.span().end());
  }
  co_return Status::ok();
}

// This rank's input for the reduction of a tensor, or a copy if values had to be changed.
struct ReductionInput {
  const std::byte* data = nullptr;
  Buffer copy;
};

Result<ReductionInput> prepare_input(RunContext& context, FiniteCheck& check, size_t tensor,
                                     const std::byte* input, const TensorDescription& agreed,
                                     const Description& description) {
  const auto elements = static_cast<size_t>(agreed.elements());
  const bool is_ours = input != nullptr || elements == 0;
  const size_t first =
      check.is_on() && is_ours ? find_non_finite(input, elements, agreed.dtype) : elements;
  const bool has_zeros_to_put = check.puts_zeros() && first != elements;
  ReductionInput prepared{input, {}};
  if (!is_ours || description.prescale != 1.0 || has_zeros_to_put) {
    prepared.copy = context.buffers.take(elements * size_of(agreed.dtype));
    if (!prepared.copy) return out_of_scratch(elements * size_of(agreed.dtype));
    prepared.data = prepared.copy.data();
    if (is_ours) {
      scale(prepared.copy.data(), input, elements, agreed.dtype, description.prescale);
    } else {
      fill_identity(prepared.copy.data(), elements, agreed.dtype, wire_op(description));
    }
  }
  if (first != elements) {
    check.found(FiniteCheck::kInput, tensor, input, first, prepared.copy.data(), elements);
  }
  return prepared;
}

Task run_reduce_scatter(ShardRun& run, RunContext context) {
  const Group& group = run.batch->set->group;
  const Description& description = run.description();
  const double factor = result_factor(description, group.size);
  const size_t tensors = description.tensors.size();
  ScratchArray<uint64_t> elements_of(context.buffers, group.size, 0);
  ScratchArray<Piece> pieces(context.buffers, tensors);
  if (!elements_of || !pieces) co_return out_of_scratch(tensors * sizeof(Piece));
  for (size_t t = 0; t < tensors; ++t) {
    const auto elements = static_cast<uint64_t>(description.tensors[t].elements());
    pieces.emplace(Piece{run.shard.operation, static_cast<uint32_t>(t), 0, elements});
  }
  FiniteCheck check(run, context, pieces.span());
  PERSEUS_CO_RETURN_IF_ERROR(check.ready());

  for (size_t t = 0; t < tensors; ++t) {
    const TensorDescription& agreed = description.tensors[t];
    const uint64_t row_elements = row_bytes(agreed) / size_of(agreed.dtype);
    size_t own_begin = 0;
    for (int r = 0; r < group.size; ++r) {
      elements_of[r] =
          static_cast<uint64_t>(rows_of(agreed.shape[0], group.size, r)) * row_elements;
      if (r < group.index) own_begin += elements_of[r];
    }
    const size_t own = elements_of[group.index];
    const uint64_t own_bytes = own * size_of(agreed.dtype);
    HostTensor tensor(run, context, t);
    Status status = co_await tensor.fetch(pieces[t].elements * size_of(agreed.dtype));
    PERSEUS_CO_RETURN_IF_ERROR(status);
    Result<ReductionInput> prepared =
        prepare_input(context, check, t, tensor.input(), agreed, description);
    if (!prepared.is_ok()) co_return prepared.status();
    status = co_await tensor.make_room(own_bytes);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    status = co_await reduce_scatter(
        group, collective_options(run, context, static_cast<uint32_t>(t)), prepared.value().data,
        tensor.output(), elements_of.span(), agreed.dtype, wire_op(description), factor);
    PERSEUS_CO_RETURN_IF_ERROR(status);
    check.search(FiniteCheck::kResult, t, tensor.output(), own, own_begin);
    status = co_await tensor.deliver(own_bytes);
    PERSEUS_CO_RETURN_IF_ERROR(status);
  }
  if (!check.has_to_conclude(/*is_shared=*/false)) co_return Status::ok();
  const Status status = co_await check.conclude(/*is_shared=*/false);
  co_return status;
}

}  // namespace

Task run_unsharded(ShardRun& run, RunContext context) {
  switch (run.description().kind) {
    case OperationKind::kAllgather: return run_allgather(run, context);
    case OperationKind::kAlltoall: return run_alltoall(run, context);
    default: return run_reduce_scatter(run, context);
  }
}

}  // namespace perseus
