// An NCCL communicator. GPU's thread.
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
// NCCL's number for the type; none if NCCL does not reduce it.
std::optional<int> nccl_type(DataType type);
// NCCL's number for the reduction; none if NCCL does not have it.
std::optional<int> nccl_op(ReduceOp op);

// Shared by the communicators on one GPU's thread.
struct NcclSetup {
  const Nccl& nccl;
  GpuThread& thread;
  NcclConfig config;
  // How long to wait for other ranks.
  std::chrono::seconds patience;
};

class NcclComm {
 public:
  // Begins to connect; call wait_until_connected next. `ids`: one id, or several if NCCL accepts
  // that, each made by a different rank; the same on all ranks.
  using Made = Result<std::unique_ptr<NcclComm>>;
  static Made begin(const NcclSetup& setup, std::span<NcclUniqueId> ids, int index, int size);
  // This and the next two functions wait for the other ranks that call them, until the thread has a
  // stop reason or the patience ends. After an error, all communicators must be aborted.
  Status wait_until_connected() const;
  // Makes a communicator of the ranks that give the same color, in the order of their keys. All
  // ranks of this one must call it, while no work is under way on it.
  Made split(int color, int key);
  // Likewise for all ranks but the `excluded`, which do not call it.
  Made shrink(std::vector<int> excluded);

  NcclComm(const NcclComm&) = delete;
  ~NcclComm();

  // To call the table's functions; not after an abort.
  const Nccl& nccl() const { return setup_.nccl; }
  NcclHandle get() const { return comm_; }
  // Returns ok while calls may be made, else the reason why not.
  Status check() const;
  // Waits for the end of a call on the communicator: only then has its work been queued on the
  // stream.
  Status finish_call(NcclResult result, std::string_view what);
  // Registers memory that collectives will use often, so that NCCL can use it without copies. The
  // memory must outlive the communicator.
  Status register_buffer(void* buffer, size_t bytes);

  // The first error since the communicator was made, or ok.
  Status health() const;
  // Ends its collectives that wait on the GPU.
  void abort();

 private:
  explicit NcclComm(const NcclSetup& setup) : setup_(setup) {}
  // Waits for the end of a call that makes `made` from this communicator.
  Made finish_making(std::unique_ptr<NcclComm> made, NcclResult result);
  // Waits until the call that was begun on the communicator has ended.
  Status wait_until_settled(Clock::time_point until, std::string_view what) const;
  // Converts NCCL's result. If another rank has failed, NCCL does not say which; the engine does,
  // if it hears of the failure before `until`.
  Status outcome(NcclResult result, std::string_view what, Clock::time_point until) const;

  const NcclSetup setup_;
  NcclHandle comm_ = nullptr;  // null once aborted
  std::vector<void*> registered_;
  // Communicators made from this one that failed. NCCL may write to them until this one is aborted.
  std::vector<std::unique_ptr<NcclComm>> unfinished_;
};

}  // namespace perseus
