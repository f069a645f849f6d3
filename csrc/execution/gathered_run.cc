#include "execution/gathered_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "collectives/collective.h"
#include "execution/finite_check.h"
#include "execution/results.h"
#include "execution/run_options.h"
#include "negotiation/piggyback.h"

namespace perseus {
namespace {

bool is_plain_allreduce(const Description& description, const Settings& settings) {
  return description.reduce_op != ReduceOp::kAdasum && description.prescale == 1.0 &&
         wanted_algorithm(settings) == AllreduceAlgorithm::kAuto && !FiniteCheck::is_on(settings) &&
         codec_for(description, description.tensors.front().dtype, settings) == nullptr;
}

// The rows for each rank come before the data, since only the sender knows them.
std::span<const std::byte> with_splits(const Operation& operation, size_t bytes,
                                       std::vector<std::byte>& scratch) {
  const auto splits = std::as_bytes(std::span(operation.splits));
  scratch.assign(splits.begin(), splits.end());
  const auto* data = static_cast<const std::byte*>(operation.tensors.front().input);
  scratch.insert(scratch.end(), data, data + bytes);
  return scratch;
}

Status run_allreduce(const Batch& batch, const RunContext& context,
                     std::span<const std::byte> inputs) {
  const Description& description = batch.agreed.front().description();
  const TensorDescription& tensor = description.tensors.front();
  const Group& group = batch.set->group;
  context.counters.bytes_reduced.add(static_cast<uint64_t>(description.bytes()));
  return allreduce_gathered(group, context.buffers, inputs,
                            batch.operations.front()->tensors.front().output,
                            static_cast<size_t>(tensor.elements()), tensor.dtype,
                            wire_op(description), result_factor(description, group.size));
}

Status run_broadcast(const Batch& batch, const RunContext& context,
                     std::span<const std::byte> inputs) {
  const size_t bytes = inputs.size() / static_cast<size_t>(batch.set->group.size);
  const auto root =
      static_cast<size_t>(batch.set->index_of(batch.agreed.front().description().root));
  std::memcpy(batch.operations.front()->tensors.front().output, inputs.data() + root * bytes,
              bytes);
  context.counters.bytes_broadcast.add(bytes);
  return {};
}

Status run_allgather(const Batch& batch, const RunContext& context,
                     std::span<const std::byte> inputs) {
  Operation& operation = *batch.operations.front();
  OperationTensor& tensor = operation.tensors.front();
  const TensorDescription& ours = operation.description.tensors.front();
  PERSEUS_RETURN_IF_ERROR(allocate_output(tensor, inputs.size()));
  std::memcpy(tensor.output, inputs.data(), inputs.size());
  set_result_rows(tensor, ours, ours.shape[0] * batch.set->group.size);
  context.counters.bytes_gathered.add(inputs.size());
  return {};
}

Status run_alltoall(const Batch& batch, const RunContext& context,
                    std::span<const std::byte> inputs) {
  Operation& operation = *batch.operations.front();
  OperationTensor& tensor = operation.tensors.front();
  const TensorDescription& ours = operation.description.tensors.front();
  const auto size = static_cast<size_t>(batch.set->group.size);
  const auto index = static_cast<size_t>(batch.set->group.index);
  const uint64_t row = row_bytes(ours);
  const size_t bytes = inputs.size() / size;
  const size_t data_at = size * sizeof(int64_t);

  // Each rank's part for this one: where it begins in the inputs, and its rows.
  std::vector<size_t> begins(size);
  operation.received_splits.resize(size);
  std::vector<int64_t> splits(size);
  for (size_t r = 0; r < size; ++r) {
    std::memcpy(splits.data(), inputs.data() + r * bytes, data_at);
    const auto before = splits.begin() + static_cast<std::ptrdiff_t>(index);
    const auto rows = [](auto first, auto last) {
      return static_cast<uint64_t>(std::accumulate(first, last, int64_t{0}));
    };
    const auto most = static_cast<int64_t>(row == 0 ? INT32_MAX : (bytes - data_at) / row);
    const bool fits =
        std::ranges::all_of(splits, [most](int64_t split) { return split >= 0 && split <= most; });
    if (!fits || rows(splits.begin(), splits.end()) * row != bytes - data_at) {
      return Status::internal("rank " + std::to_string(batch.set->ranks[r]) +
                              " has sent splits that do not fit its data");
    }
    begins[r] = r * bytes + data_at + rows(splits.begin(), before) * row;
    operation.received_splits[r] = splits[index];
  }
  const auto total = std::accumulate(operation.received_splits.begin(),
                                     operation.received_splits.end(), int64_t{0});
  PERSEUS_RETURN_IF_ERROR(allocate_output(tensor, static_cast<uint64_t>(total) * row));
  auto* out = static_cast<std::byte*>(tensor.output);
  for (size_t r = 0; r < size; ++r) {
    const uint64_t its_bytes = static_cast<uint64_t>(operation.received_splits[r]) * row;
    if (its_bytes > 0) out = std::copy_n(inputs.data() + begins[r], its_bytes, out);
  }
  set_result_rows(tensor, ours, total);
  context.counters.bytes_exchanged.add(bytes - data_at);
  return {};
}

}  // namespace

std::span<const std::byte> input_for_agreement(const Operation& operation,
                                               const RunContext& context,
                                               std::vector<std::byte>& scratch) {
  const Description& description = operation.description;
  if (description.device != DeviceKind::kCpu || description.tensors.size() != 1) return {};
  const auto bytes = static_cast<size_t>(description.bytes());
  if (!Piggyback::fits(1, bytes)) return {};
  const std::span<const std::byte> input(
      static_cast<const std::byte*>(operation.tensors.front().input), bytes);
  switch (description.kind) {
    case OperationKind::kAllreduce:
      if (!is_plain_allreduce(description, context.settings)) return {};
      return input;
    case OperationKind::kAllgather: return input;
    case OperationKind::kBroadcast:
      if (description.root == context.rank) return input;
      scratch.assign(bytes, std::byte{0});  // nobody reads it
      return scratch;
    case OperationKind::kAlltoall: return with_splits(operation, bytes, scratch);
    default: return {};
  }
}

Status run_gathered(const Batch& batch, const RunContext& context,
                    std::span<const std::byte> inputs) {
  PERSEUS_RETURN_IF_ERROR(
      allocate_outputs(*batch.operations.front(), batch.set->group.size, batch.set->index));
  switch (batch.agreed.front().description().kind) {
    case OperationKind::kBroadcast: return run_broadcast(batch, context, inputs);
    case OperationKind::kAllgather: return run_allgather(batch, context, inputs);
    case OperationKind::kAlltoall: return run_alltoall(batch, context, inputs);
    default: return run_allreduce(batch, context, inputs);
  }
}

}  // namespace perseus
