// One of a process set's lanes of NCCL: a stream, the communicators whose collectives run on it,
// and memory in which tensors are laid end to end. All on the GPU's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/nccl_comm.h"

namespace perseus {

// Memory for what is queued on one stream. As the work there goes one after the other, so it can
// all have the same memory; and collectives always find it where NCCL knows it.
class LaneMemory {
 public:
  // `is_registered`: NCCL gives the memory, and is told of it.
  LaneMemory(const NcclSetup& setup, bool is_registered)
      : setup_(setup), is_registered_(is_registered) {}
  LaneMemory(const LaneMemory&) = delete;
  // What is queued must have ended.
  ~LaneMemory();

  // So many bytes, for what is queued from now on until the next call. `comms`: those of the lane.
  Result<std::byte*> take(size_t bytes, std::span<NcclComm* const> comms);
  // A GPU may still be at it: it is not given back.
  void leave() { blocks_.clear(); }

 private:
  Result<std::byte*> allocate(size_t bytes);

  const NcclSetup setup_;
  const bool is_registered_;
  // Each twice as large as the one before; work that was queued before uses the smaller ones.
  struct Block {
    std::byte* data;
    size_t bytes;
  };
  std::vector<Block> blocks_;
};

class NcclLane final : public AbortableCommunicators {
 public:
  struct Options {
    bool registers_memory;
  };
  // An empty one, to be connected.
  static Result<std::unique_ptr<NcclLane>> make(const NcclSetup& setup, Options options);
  ~NcclLane() override;

  // See NcclComm.
  Status connect(std::span<NcclUniqueId> ids, int index, int size);
  // From the communicator of another set's lane, once what that has under way has ended.
  Status shrink_from(NcclLane& other, std::vector<int> excluded);
  // For collectives inside hosts and between them: those with the same number of the host, and
  // those with the same position on theirs. Right after it has been connected.
  Status split_by_host(int host, int position);

  CuStream stream() const { return stream_; }
  NcclComm& all() { return *all_; }
  NcclComm& local() { return *local_; }
  NcclComm& across() { return *across_; }
  // Why nothing may be queued; ok while it may.
  Status check() const;
  // See LaneMemory.
  Result<std::byte*> take_memory(size_t bytes) { return memory_.take(bytes, comms()); }

  Status health() override;
  std::vector<std::function<void()>> aborts() override;

 private:
  NcclLane(const NcclSetup& setup, Options options)
      : setup_(setup), memory_(setup, options.registers_memory) {}
  std::vector<NcclComm*> comms() const;
  // Waits until the stream has done what it has. gives_up: when the thread is to.
  Status wait_until_idle(Clock::time_point until, bool gives_up) const;

  const NcclSetup setup_;
  CuStream stream_ = nullptr;
  std::unique_ptr<NcclComm> all_, local_, across_;
  LaneMemory memory_;
};

}  // namespace perseus
