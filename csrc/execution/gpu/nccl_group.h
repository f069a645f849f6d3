// A process set's lanes of NCCL: whether its ranks can speak to each other by it, which they find
// out together when they first have tensors on GPUs, and the communicators, one a lane, which are
// connected when the first of these tensors has its turn. Engine thread; what it makes lives on the
// GPU's thread.
#pragma once

#include <coroutine>
#include <memory>
#include <string>
#include <vector>

#include "base/task.h"
#include "device/cuda/libraries.h"
#include "device/cuda/nccl_lane.h"
#include "execution/shard_run.h"

namespace perseus {

// The bound of PERSEUS_NCCL_LANES.
inline constexpr int kMostNcclLanes = 16;

// Communicators are of one GPU a rank: an error unless the operation is on this one.
Status check_same_gpu(const Operation& operation, const Gpu& gpu);

class NcclGroup final : TaskObserver {
 public:
  // `thread`: of this rank's GPU, which has the set's first tensors.
  NcclGroup(const Settings& settings, GpuThread& thread, const ProcessSet& set);
  NcclGroup(const NcclGroup&) = delete;
  ~NcclGroup();

  // Has the ranks tell each other what they have. Call once; the messages go under `options`.
  void exchange_capabilities(const CollectiveOptions& options) { exchange(options).start(this); }

  // Awaited by shards, any number: until the ranks know what all of them have.
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

  // All of these once ready() has returned; the same on all ranks.
  // Why the set's tensors go by way of the host; empty if they go by NCCL.
  const std::string& staging_reason() const { return staging_reason_; }
  // Whether every rank has kernels.
  bool has_kernels() const { return has_kernels_; }

  // Why the operation cannot go by NCCL with the others. Before ready() has returned: why it could
  // not if the ranks turn out to use NCCL.
  Status check(const Operation& operation) const;

  Gpu& gpu() const { return thread_.gpu(); }
  GpuThread& thread() const { return thread_; }
  int lanes() const { return static_cast<int>(lanes_.size()); }

  // GPU's thread, when it is this set's turn: a lane, which this connects. `world`: the group of
  // all ranks, if there is one by now, whose communicators save a part of that.
  Result<NcclLane*> lane(int number, const NcclGroup* world);

 private:
  struct Capabilities;
  Capabilities own_capabilities() const;
  void compare(std::span<const Capabilities> all);
  Task exchange(CollectiveOptions options);
  Task exchange_ids(CollectiveOptions options);
  void task_finished(const Status& status) override;
  Status connect(NcclLane& lane, int number, const NcclGroup* world);
  // The lane of that number, if it is connected and these ranks use the same GPUs there.
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
  std::vector<std::unique_ptr<NcclLane>> lanes_;  // by number; GPU's thread, once connected
};

}  // namespace perseus
