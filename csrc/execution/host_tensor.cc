#include "execution/host_tensor.h"

#include "collectives/scratch_array.h"
#include "device/cuda/gpu_copies.h"
#include "execution/results.h"

namespace perseus {

HostTensor::HostTensor(ShardRun& run, RunContext& context, size_t index)
    : context_(context),
      operation_(run.batch->operations[run.shard.operation].get()),
      tensor_(operation_ != nullptr ? &operation_->tensors[index] : nullptr),
      dtype_(run.description().tensors[index].dtype) {}

MaybeTask HostTensor::fetch(uint64_t bytes) {
  if (!is_ours()) return Status::ok();
  if (!is_on_gpu() || bytes == 0) {
    input_ = tensor_->input;
    return Status::ok();
  }
  const auto thread = context_.gpus.of(*operation_->gpu);
  if (!thread.is_ok()) return thread.status();
  return copy_input(*thread.value(), bytes);
}

Task HostTensor::copy_input(GpuThread& thread, uint64_t bytes) {
  Status status = co_await take_pinned(thread, bytes, pinned_input_);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const Move move{tensor_->input, pinned_input_.data(), bytes / size_of(dtype_), 0};
  const CuEvent ready = operation_->ready.get();
  status = co_await copy_down(thread, {{&move, 1}, {&ready, 1}, dtype_, 1.0}, pinned_input_);
  input_ = pinned_input_.data();
  co_return status;
}

MaybeTask HostTensor::make_room(uint64_t bytes) {
  if (is_on_gpu() && bytes > 0) {
    const auto thread = context_.gpus.of(*operation_->gpu);
    if (!thread.is_ok()) return thread.status();
    return make_pinned_room(*thread.value(), bytes);
  }
  if (is_ours()) {
    if (tensor_->output == nullptr) PERSEUS_RETURN_IF_ERROR(allocate_output(*tensor_, bytes));
    output_ = tensor_->output;
    return Status::ok();
  }
  if (bytes == 0) return Status::ok();
  scratch_ = context_.buffers.take(bytes);
  output_ = scratch_.data();
  return scratch_ ? Status::ok() : out_of_scratch(bytes);
}

Task HostTensor::make_pinned_room(GpuThread& thread, uint64_t bytes) {
  const Status status = co_await take_pinned(thread, bytes, pinned_output_);
  output_ = pinned_output_.data();
  co_return status;
}

MaybeTask HostTensor::deliver(uint64_t bytes) {
  if (!is_on_gpu() || bytes == 0) return Status::ok();
  const auto thread = context_.gpus.of(*operation_->gpu);
  if (!thread.is_ok()) return thread.status();
  return copy_result(*thread.value(), bytes);
}

Task HostTensor::copy_result(GpuThread& thread, uint64_t bytes) {
  if (tensor_->output == nullptr) {
    AwaitableGpuWork allocation(thread, nullptr,
                                [&] { return allocate_output(*tensor_, bytes, thread.gpu()); });
    const Status allocated = co_await allocation;
    PERSEUS_CO_RETURN_IF_ERROR(allocated);
  }
  const Move move{output_, tensor_->output, bytes / size_of(dtype_), 0};
  const CuEvent ready = operation_->ready.get();
  const Status status =
      co_await copy_up(thread, {{&move, 1}, {&ready, 1}, dtype_, 1.0}, pinned_output_);
  co_return status;
}

}  // namespace perseus
