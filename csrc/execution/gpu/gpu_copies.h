// Copies between tensors on a GPU and pinned memory, made by the GPU's thread. Engine thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "base/types.h"
#include "device/cuda/gpu_thread.h"

namespace perseus {

struct GpuCopies {
  std::span<const Move> moves;
  std::span<const CuEvent> ready;  // when the tensors may be touched; null ones: now
  DataType dtype = DataType::kFloat32;
  double factor = 1.0;  // that each element is multiplied by
};

// Has the stream wait until tensors may be touched. GPU's thread.
Status wait_until_ready(const Gpu& gpu, std::span<const CuEvent> ready, CuStream stream);

// At least so much memory into `pinned`. Pinning fresh memory takes milliseconds.
Task take_pinned(GpuThread& thread, uint64_t bytes, GpuBuffer& pinned);

// From tensors to memory in `pinned`, and from there to tensors. Done when they return.
Task copy_down(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned);
Task copy_up(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned);

}  // namespace perseus
