// A buffer in which a shard's tensors are laid end to end for the wire: memory of the pool or, for
// tensors on GPUs, pinned memory that the GPUs copy to and from (Horovod's "MPI + CUDA"). Engine
// thread.
#pragma once

#include <cstddef>

#include "base/task.h"
#include "execution/batch.h"
#include "execution/finite_check.h"

namespace perseus {

class FusionBuffer {
 public:
  FusionBuffer(ShardRun& run, RunContext& context) : run_(run), context_(context) {}
  FusionBuffer(const FusionBuffer&) = delete;

  // Takes the memory. Await it before anything else.
  MaybeTask take();
  std::byte* data() const { return pinned_ ? pinned_.data() : memory_.data(); }

  // Copies the pieces to the buffer and multiplies each element by `factor`. A piece that this rank
  // has not submitted is filled with the reduction's neutral element.
  MaybeTask pack(double factor, FiniteCheck* check = nullptr);
  // Copies the buffer to the pieces and multiplies each element by `factor`.
  MaybeTask unpack(double factor, FiniteCheck* check = nullptr);

 private:
  void pack_here(double factor, FiniteCheck* check);
  void unpack_here(double factor, FiniteCheck* check);
  Task pack_from_gpus(double factor, FiniteCheck* check);
  Task unpack_to_gpus(double factor, FiniteCheck* check);

  // Returns whether this rank has tensors on a GPU in the shard.
  bool is_on_gpu() const;
  enum class Direction { kDown, kUp };
  // Moves the pieces that are on one GPU.
  Task move(Gpu& gpu, Direction direction, double factor);

  ShardRun& run_;
  RunContext& context_;
  Buffer memory_;
  GpuBuffer pinned_;
};

}  // namespace perseus
