// NCCL for a process set. When the ranks first have tensors on GPUs, they exchange what they have
// and find out together whether they can use NCCL. There is a communicator for each lane, which is
// connected when the first of these tensors has its turn. Engine thread; lanes live on the GPU's
// thread.
#pragma once

#include <coroutine>
#include <memory>
#include <string>
#include <vector>

#include "base/task.h"
#include "device/cuda/libraries.h"
#include "device/cuda/nccl_lane.h"
#include "execution/batch.h"

namespace perseus {

// Returns an error if the operation is on another GPU: a rank's communicators use one GPU.
Status check_same_gpu(const Operation& operation, const Gpu& gpu);

class NcclGroup final : TaskObserver {
 public:
  // `thread`: that of the GPU which has this rank's first tensors of the set.
  NcclGroup(const Settings& settings, GpuThread& thread, const ProcessSet& set);
  NcclGroup(const NcclGroup&) = delete;
  ~NcclGroup();

  // Begins to exchange what each rank has. Call once. The messages go under `options`.
  void exchange_capabilities(const CollectiveOptions& options) { exchange(options).start(this); }

  // Any number of shards may await this. It ends when the ranks know what all of them have.
  class Ready {
   public:
    explicit Ready(NcclGroup& group) : group_(group) {}
    bool await_ready() const { return group_.is_ready_; }
    void await_suspend(std::coroutine_handle<> waiter) { group_.waiters_.push_back(waiter); }
    Status await_resume() const { return group_.status_; }

   private:
    NcclGroup& group_;
  };
  Ready ready() { return Ready(*this); }

  // Valid once ready() has returned, and the same on all ranks: why the set's tensors are staged
  // through the host's memory; empty if they go by NCCL.
  const std::string& staging_reason() const { return staging_reason_; }
  // Valid once ready() has returned: whether every rank has kernels.
  bool has_kernels() const { return has_kernels_; }

  // Returns an error if the set uses NCCL, or may still come to use it, and the operation's tensors
  // are not on the set's GPU.
  Status check(const Operation& operation) const;

  Gpu& gpu() const { return thread_.gpu(); }
  GpuThread& thread() const { return thread_; }
  int lanes() const { return static_cast<int>(lanes_.size()); }

  // GPU's thread, when it is this set's turn. Returns a lane, which it connects if necessary.
  // `world`: the group of all ranks, if there is one; its communicators make connecting faster.
  Result<NcclLane*> lane(int number, const NcclGroup* world);

 private:
  struct Capabilities;
  Capabilities own_capabilities() const;
  void compare(std::span<const Capabilities> all);
  Task exchange(CollectiveOptions options);
  Task exchange_ids(CollectiveOptions options);
  void task_finished(const Status& status) override;
  Status connect(NcclLane& lane, int number, const NcclGroup* world);
  // The world's lane of that number, if it is connected and this set's ranks use the same GPUs in
  // it.
  NcclLane* lane_to_shrink(const NcclGroup& world, int number) const;

  const Settings& settings_;
  GpuThread& thread_;
  const ProcessSet& set_;
  const FoundLibrary<Nccl>& library_;
  const NcclSetup setup_;
  const bool is_hierarchical_;

  bool is_ready_ = false;
  Status status_;
  std::string staging_reason_;
  bool has_kernels_ = false;
  std::vector<CuUuid> gpus_;  // by index
  std::vector<std::coroutine_handle<>> waiters_;

  std::vector<std::vector<NcclUniqueId>> ids_;    // by lane
  std::vector<std::unique_ptr<NcclLane>> lanes_;  // by number; the GPU's thread's, once connected
};

}  // namespace perseus
