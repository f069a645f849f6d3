// The calls by which a shard queues work on one communicator of a lane: NCCL's collectives, and
// moves within the GPU's memory. GPU's thread, in its context. Work is only queued when a call
// returns ok.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "device/cuda/gpu.h"
#include "device/cuda/nccl_lane.h"

namespace perseus {

class LaneCalls {
 public:
  LaneCalls(Gpu& gpu, NcclLane& lane, NcclComm& comm) : gpu_(gpu), lane_(lane), comm_(comm) {}

  // The same for the communicator of this host's ranks, or for that between hosts.
  LaneCalls inside_host() const { return {gpu_, lane_, lane_.local()}; }
  LaneCalls between_hosts() const { return {gpu_, lane_, lane_.across()}; }

  Gpu& gpu() const { return gpu_; }
  CuStream stream() const { return lane_.stream(); }
  // Memory for the work that this shard queues on the lane. The next shard on the lane gets the
  // same memory.
  Result<std::byte*> take_memory(uint64_t bytes) const { return lane_.take_memory(bytes); }

  // Moves elements, multiplied by `factor`. Uses a kernel or, if there is none, one copy for each
  // move; only a kernel can multiply and search.
  Status move(std::span<const Move> moves, DataType dtype, double factor,
              const NonFiniteSearch& search) const;
  // Moves the elements of `buffer`, multiplied by `factor`, to their targets. The products are
  // searched.
  Status unpack(std::byte* buffer, uint64_t elements, std::span<const Move> moves, DataType dtype,
                double factor, const NonFiniteSearch& search) const;

  // For sums of floating types, elements are multiplied by `factor`, converted to that type.
  Status all_reduce(const void* source, void* target, uint64_t elements, DataType dtype,
                    ReduceOp op, double factor) const;
  Status reduce_scatter(const void* source, void* target, uint64_t elements_of_each, DataType dtype,
                        ReduceOp op, double factor) const;
  Status all_gather(const void* source, void* target, uint64_t bytes_of_each) const;
  Status broadcast(const void* source, void* target, uint64_t bytes, int root) const;

  const Nccl& table() const { return comm_.nccl(); }
  NcclHandle handle() const { return comm_.get(); }
  // Groups several calls of the table into one; `calls` returns the first error among them.
  template <typename Calls>
  Status grouped(const char* what, Calls calls) const {
    PERSEUS_RETURN_IF_ERROR(nccl_status(table(), table().group_start(), what));
    const NcclResult within = calls();
    const NcclResult ended = table().group_end();
    PERSEUS_RETURN_IF_ERROR(nccl_status(table(), within, what));
    return comm_.finish_call(ended, what);
  }

 private:
  // Calls `reduce` with NCCL's number for the reduction.
  template <typename Reduce>
  Status with_op(ReduceOp op, DataType dtype, double factor, Reduce reduce) const;

  Gpu& gpu_;
  NcclLane& lane_;
  NcclComm& comm_;
};

}  // namespace perseus
