// A tensor of an unsharded operation as collectives see it: in memory of the host. A tensor on a
// GPU is copied there. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/task.h"
#include "execution/batch.h"

namespace perseus {

class HostTensor {
 public:
  // `index`: the tensor's in the shard's operation. This rank may not have submitted the operation.
  HostTensor(ShardRun& run, RunContext& context, size_t index);
  HostTensor(const HostTensor&) = delete;

  bool is_ours() const { return tensor_ != nullptr; }

  // Makes `bytes` bytes of the input available. input() stays null if this rank has not submitted
  // it.
  MaybeTask fetch(uint64_t bytes);
  const std::byte* input() const { return input_; }

  // Takes memory for the result: scratch if this rank has not submitted the operation.
  MaybeTask make_room(uint64_t bytes);
  std::byte* output() const { return output_; }
  // Copies the result, which is in output() by now, to where it belongs.
  MaybeTask deliver(uint64_t bytes);

 private:
  bool is_on_gpu() const { return tensor_ != nullptr && operation_->gpu != nullptr; }
  Task copy_input(GpuThread& thread, uint64_t bytes);
  Task make_pinned_room(GpuThread& thread, uint64_t bytes);
  Task copy_result(GpuThread& thread, uint64_t bytes);

  RunContext& context_;
  Operation* operation_;
  OperationTensor* tensor_;  // null: this rank has not submitted it
  DataType dtype_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  Buffer scratch_;
  GpuBuffer pinned_input_, pinned_output_;
};

}  // namespace perseus
