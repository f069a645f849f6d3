// A tensor of an operation that is done whole, as collectives see it: in memory of the host. For
// one on a GPU that is a copy. Engine thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/task.h"
#include "execution/shard_run.h"

namespace perseus {

class HostTensor {
 public:
  // `index`: of the tensor in the shard's operation, which this rank may not have submitted.
  HostTensor(ShardRun& run, RunContext& context, size_t index);
  HostTensor(const HostTensor&) = delete;

  bool is_ours() const { return tensor_ != nullptr; }

  // Brings so many bytes of the input; `input` is null if it is none of ours.
  MaybeTask fetch(uint64_t bytes);
  const std::byte* input() const { return input_; }

  // Memory for the result; of one that is none of ours, scratch.
  MaybeTask make_room(uint64_t bytes);
  std::byte* output() const { return output_; }
  // The result, which is in `output` now, to where it belongs.
  MaybeTask deliver(uint64_t bytes);

 private:
  bool is_on_gpu() const { return tensor_ != nullptr && operation_->gpu != nullptr; }
  Task copy_input(GpuThread& thread, uint64_t bytes);
  Task make_pinned_room(GpuThread& thread, uint64_t bytes);
  Task copy_result(GpuThread& thread, uint64_t bytes);

  RunContext& context_;
  Operation* operation_;
  OperationTensor* tensor_;  // null: not ours
  DataType dtype_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  Buffer scratch_;
  GpuBuffer pinned_input_, pinned_output_;
};

}  // namespace perseus
