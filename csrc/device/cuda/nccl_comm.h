// A communicator of NCCL. All on the GPU's thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

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

// What communicators on one GPU's thread have in common.
struct NcclSetup {
  const Nccl& nccl;
  GpuThread& thread;
  NcclConfig config;
  // How long to wait for what other ranks have to do first.
  std::chrono::seconds patience;
};

class NcclComm {
 public:
  // Begins to connect; to be followed by wait_until_connected.
  // ids: one or, where NCCL takes several, so many, each of a rank of its own; the same on all.
  using Made = Result<std::unique_ptr<NcclComm>>;
  static Made begin(const NcclSetup& setup, std::span<NcclUniqueId> ids, int index, int size);
  // Likewise the two that follow: waits for the other ranks that call them alike, until the thread
  // is to give up or the patience ends. After an error it is to be aborted with all others.
  Status wait_until_connected() const;
  // Of this one's ranks, those that give the same color, in the order of their keys. All must call
  // it, and nothing may be under way on it.
  Made split(int color, int key);
  // Of all but the `excluded`, who do not call it; likewise.
  Made shrink(std::vector<int> excluded);

  NcclComm(const NcclComm&) = delete;
  ~NcclComm();

  // For calls of the table; not after an abort.
  const Nccl& nccl() const { return setup_.nccl; }
  NcclHandle get() const { return comm_; }
  // Why no call may be made any more; ok while it may.
  Status check() const;
  // The end of a call on the communicator: it is queued to the stream only then.
  Status finish_call(NcclResult result, std::string_view what);
  // Tells NCCL of memory that collectives will use often, so that it can do so without copies of
  // its own. The memory must be there until the communicator has ended.
  Status register_buffer(void* buffer, size_t bytes);

  // What has gone wrong since it was made.
  Status health() const;
  // Ends what waits on the GPU.
  void abort();

 private:
  explicit NcclComm(const NcclSetup& setup) : setup_(setup) {}
  // The end of a call that makes `made` of this one.
  Made finish_making(std::unique_ptr<NcclComm> made, NcclResult result);
  // Waits until what was begun on the communicator has come to its end.
  Status wait_until_settled(Clock::time_point until, std::string_view what) const;
  // What NCCL says of it. Of another rank's failure it does not tell whose; the engine does, if it
  // hears of it before `until`.
  Status outcome(NcclResult result, std::string_view what, Clock::time_point until) const;

  const NcclSetup setup_;
  NcclHandle comm_ = nullptr;  // null once aborted
  std::vector<void*> registered_;
  // Of this one's ranks, which NCCL may yet write to until this one has been aborted.
  std::vector<std::unique_ptr<NcclComm>> unfinished_;
};

}  // namespace perseus
