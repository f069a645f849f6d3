// Where a shard's tensors are laid end to end for the wire: memory of the pool or, if they are on
// GPUs, pinned memory, to and from which the GPUs copy ("MPI + CUDA" of Horovod). Engine thread.
#pragma once

#include <cstddef>

#include "base/task.h"
#include "execution/finite_check.h"
#include "execution/shard_run.h"

namespace perseus {

class FusionBuffer {
 public:
  FusionBuffer(ShardRun& run, RunContext& context) : run_(run), context_(context) {}
  FusionBuffer(const FusionBuffer&) = delete;

  // The memory; to be awaited before all else.
  MaybeTask take();
  std::byte* data() const { return pinned_ ? pinned_.data() : memory_.data(); }

  // Copies the pieces into the buffer, each element times `factor`; what this rank has not
  // submitted becomes the reduction's neutral element.
  MaybeTask pack(double factor, FiniteCheck* check = nullptr);
  // Copies the buffer, each element times `factor`, to the pieces.
  MaybeTask unpack(double factor, FiniteCheck* check = nullptr);

 private:
  void pack_here(double factor, FiniteCheck* check);
  void unpack_here(double factor, FiniteCheck* check);
  Task pack_from_gpus(double factor, FiniteCheck* check);
  Task unpack_to_gpus(double factor, FiniteCheck* check);

  // Whether this rank has tensors on a GPU in the shard.
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
