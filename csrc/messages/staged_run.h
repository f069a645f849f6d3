// Memory for one run of a message at a time, between the tensor of an operation and the wire. A
// tensor on a GPU is staged in pinned memory of the host; elements that travel encoded have a
// buffer. Otherwise a run is sent from, and received into, the tensor itself. Engine thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/buffer_pool.h"
#include "base/task.h"
#include "device/cuda/gpu_thread.h"
#include "messages/message_form.h"
#include "state/operation.h"
#include "transport/link.h"

namespace perseus {

class StagedRun {
 public:
  // How many runs of a message are under way at a time.
  static constexpr uint32_t kAtOnce = 4;

  StagedRun(BufferPool& buffers, GpuThreads& gpus, const Operation& operation,
            const MessageForm& form)
      : buffers_(buffers), gpus_(gpus), operation_(operation), form_(form) {}
  StagedRun(const StagedRun&) = delete;

  // For a send: brings the run's bytes to wire().
  MaybeTask load(uint32_t run);
  // Of a receive: has memory for the run's bytes at wire(), and brings them from there to the
  // tensor.
  MaybeTask make_room(uint32_t run);
  MaybeTask store();
  std::byte* wire() const { return wire_; }

  // The transfer of the bytes, if one has begun and has not been awaited.
  std::optional<Transfer> transfer;
  // co_await transferred() ends that, and gives its status; ok if there is none.
  class Transferred {
   public:
    explicit Transferred(std::optional<Transfer>& transfer) : transfer_(transfer) {}
    bool await_ready() const noexcept { return !transfer_ || transfer_->await_ready(); }
    void await_suspend(std::coroutine_handle<> waiter) noexcept {
      transfer_->await_suspend(waiter);
    }
    Status await_resume() {
      if (!transfer_) return {};
      Status status = transfer_->await_resume();
      transfer_.reset();
      return status;
    }

   private:
    std::optional<Transfer>& transfer_;
  };
  Transferred transferred() { return Transferred(transfer); }

 private:
  Task load_from_gpu(GpuThread& thread);
  Task make_pinned_room(GpuThread& thread);
  Task store_on_gpu(GpuThread& thread);
  // Sets where the run is on the wire, given where its elements are on the host.
  Status place(std::byte* elements);

  const OperationTensor& tensor() const { return operation_.tensors.front(); }
  uint64_t tensor_offset() const { return run_.first * size_of(form_.dtype()); }
  uint64_t most_bytes() const;  // of a run's elements

  BufferPool& buffers_;
  GpuThreads& gpus_;
  const Operation& operation_;
  const MessageForm& form_;
  MessageForm::Run run_{};
  std::byte* elements_ = nullptr;  // of the run, on the host
  std::byte* wire_ = nullptr;
  Buffer encoded_;
  GpuBuffer pinned_;
};

}  // namespace perseus
