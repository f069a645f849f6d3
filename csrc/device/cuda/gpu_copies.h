// Copies between tensors on a GPU and pinned memory. The GPU's thread makes them; the functions
// here run on the engine's thread, unless they say otherwise.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "base/types.h"
#include "device/cuda/gpu_thread.h"

namespace perseus {

struct GpuCopies {
  std::span<const Move> moves;
  std::span<const CuEvent> ready;  // after which the tensors may be used; null: they may be now
  DataType dtype = DataType::kFloat32;
  double factor = 1.0;  // that each element is multiplied by
};

// Makes the stream wait until tensors may be used. GPU's thread.
Status wait_until_ready(const Gpu& gpu, std::span<const CuEvent> ready, CuStream stream);

// Takes pinned memory of at least `bytes` bytes. Pinning fresh memory takes milliseconds.
Task take_pinned(GpuThread& thread, uint64_t bytes, GpuBuffer& pinned);

// Copy from tensors to memory in `pinned`, and from there to tensors. The copies are done when
// these return.
Task copy_down(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned);
Task copy_up(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned);

}  // namespace perseus
