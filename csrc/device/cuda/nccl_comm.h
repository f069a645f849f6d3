// A communicator of NCCL and the stream that its collectives run on: one lane of a process set. All
// on the GPU's thread, which looks after it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "base/types.h"
#include "device/cuda/gpu_thread.h"
#include "device/cuda/nccl.h"

namespace perseus {

Status nccl_status(const Nccl& nccl, NcclResult result, std::string_view what);
// NCCL's number of the type; none if it does not reduce that.
std::optional<int> nccl_type(DataType type);
// NCCL's number of the reduction; none if it has no such.
std::optional<int> nccl_op(ReduceOp op);

class NcclComm final : public GpuDependent {
 public:
  // Connects with the ranks that call it with the same id, and waits for them, until the thread is
  // to give up or `patience` ends.
  static Result<std::unique_ptr<NcclComm>> connect(const Nccl& nccl, GpuThread& thread,
                                                   const NcclUniqueId& id, int index, int size,
                                                   std::chrono::seconds patience);
  ~NcclComm() override;

  // For calls of the table; not after an abort.
  const Nccl& nccl() const { return nccl_; }
  NcclHandle get() const { return comm_; }
  CuStream stream() const { return stream_; }
  // Why no call may be made any more; ok while it may.
  Status check() const;
  // The end of a call on the communicator: it is queued to the stream only then.
  Status finish_call(NcclResult result, std::string_view what);

  Status health() override;
  void abort() override;

 private:
  NcclComm(const Nccl& nccl, GpuThread& thread, std::chrono::seconds patience)
      : nccl_(nccl), thread_(thread), patience_(patience) {}
  // Waits until what was begun on the communicator has come to its end.
  Status wait_until_settled(std::chrono::steady_clock::time_point until, std::string_view what);

  const Nccl& nccl_;
  GpuThread& thread_;
  const std::chrono::seconds patience_;
  NcclHandle comm_ = nullptr;  // null once aborted
  CuStream stream_ = nullptr;
};

}  // namespace perseus
