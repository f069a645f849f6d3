// One of a process set's NCCL lanes: a stream, the communicators whose collectives run on it, and
// memory in which tensors are packed. GPU's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/nccl_comm.h"

namespace perseus {

// Memory for the work on one stream. Since that work runs in order, all of it can share the same
// memory, which can stay registered with NCCL.
class LaneMemory {
 public:
  // `is_registered`: NCCL allocates the memory, and it is registered with the communicators.
  LaneMemory(const NcclSetup& setup, bool is_registered)
      : setup_(setup), is_registered_(is_registered) {}
  LaneMemory(const LaneMemory&) = delete;
  // The work that uses the memory must have ended.
  ~LaneMemory();

  // `bytes` bytes for the work that is queued until the next call. `comms`: those of the lane.
  Result<std::byte*> take(size_t bytes, std::span<NcclComm* const> comms);
  // Leaks the memory, since the GPU may still use it.
  void leave() { blocks_.clear(); }

 private:
  Result<std::byte*> allocate(size_t bytes);

  const NcclSetup setup_;
  const bool is_registered_;
  // Each at least twice as large as the one before. Work that was queued earlier uses the smaller
  // ones.
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
  // Makes a lane without communicators; connect it next.
  static Result<std::unique_ptr<NcclLane>> make(const NcclSetup& setup, Options options);
  ~NcclLane() override;

  // See NcclComm.
  Status connect(std::span<NcclUniqueId> ids, int index, int size);
  // Makes the communicator from that of another process set's lane, once the work there has ended.
  Status shrink_from(NcclLane& other, std::vector<int> excluded);
  // Makes communicators for collectives inside hosts and between them: of the ranks with the same
  // host number, and of those with the same position on their hosts. Call right after connecting.
  Status split_by_host(int host, int position);

  CuStream stream() const { return stream_; }
  NcclComm& all() { return *all_; }
  NcclComm& local() { return *local_; }
  NcclComm& across() { return *across_; }
  // Returns ok while work may be queued, else the reason why not.
  Status check() const;
  // See LaneMemory.
  Result<std::byte*> take_memory(size_t bytes) { return memory_.take(bytes, comms()); }

  Status health() override;
  std::vector<std::function<void()>> aborts() override;

 private:
  NcclLane(const NcclSetup& setup, Options options)
      : setup_(setup), memory_(setup, options.registers_memory) {}
  std::vector<NcclComm*> comms() const;
  // Waits until the stream's work is done. `gives_up`: stops waiting when the thread has a stop
  // reason.
  Status wait_until_idle(Clock::time_point until, bool gives_up) const;

  const NcclSetup setup_;
  CuStream stream_ = nullptr;
  std::unique_ptr<NcclComm> all_, local_, across_;
  LaneMemory memory_;
};

}  // namespace perseus
