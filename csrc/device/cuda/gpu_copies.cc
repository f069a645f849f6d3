#include "device/cuda/gpu_copies.h"

#include <utility>

#include "device/cpu/kernels.h"
#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

// The GPU's copy engines are fastest for a single tensor without a factor. A kernel that accesses
// the host's memory is faster for many tensors at once, or with a factor.
bool takes_kernel(const Gpu& gpu, const GpuCopies& copies) {
  return gpu.kernels() != nullptr && (copies.moves.size() > 1 || copies.factor != 1.0);
}

// Scales on the host, where there are no kernels.
void scale_here(const GpuCopies& copies, const void* (*side)(const Move&)) {
  for (const Move& move : copies.moves) {
    auto* values = const_cast<void*>(side(move));
    scale(values, values, move.elements, copies.dtype, copies.factor);
  }
}

// Queues the copies on the stream. copy_one(move, bytes) queues a single one.
template <typename CopyOne>
Status queue(const Gpu& gpu, const GpuCopies& copies, CuStream stream, CopyOne copy_one) {
  PERSEUS_RETURN_IF_ERROR(wait_until_ready(gpu, copies.ready, stream));
  if (takes_kernel(gpu, copies)) {
    return gpu.kernels()->launch(copies.moves, copies.dtype, copies.dtype, copies.factor, {},
                                 stream);
  }
  for (const Move& move : copies.moves) {
    const CuResult queued = copy_one(move, move.elements * size_of(copies.dtype));
    PERSEUS_RETURN_IF_ERROR(cuda_status(gpu.driver(), queued, "copying a tensor"));
  }
  return {};
}

}  // namespace

Status wait_until_ready(const Gpu& gpu, std::span<const CuEvent> ready, CuStream stream) {
  for (const CuEvent event : ready) {
    if (event == nullptr) continue;
    PERSEUS_RETURN_IF_ERROR(cuda_status(gpu.driver(),
                                        gpu.driver().stream_wait_event(stream, event, 0),
                                        "waiting for the framework's stream"));
  }
  return {};
}

Task take_pinned(GpuThread& thread, uint64_t bytes, GpuBuffer& pinned) {
  AwaitableGpuWork work(thread, nullptr, [&]() -> Status {
    auto taken = thread.gpu().take_buffer(GpuBuffer::Kind::kPinned, bytes);
    if (taken.is_ok()) pinned = std::move(taken).value();
    return taken.status();
  });
  const Status status = co_await work;
  co_return status;
}

Task copy_down(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned) {
  Gpu& gpu = thread.gpu();
  const CuStream stream = gpu.download_stream();
  AwaitableGpuWork work(thread, stream, [&] {
    return queue(gpu, copies, stream, [&](const Move& move, size_t bytes) {
      return gpu.driver().copy_to_host(move.target, reinterpret_cast<CuPointer>(move.source), bytes,
                                       stream);
    });
  });
  const Status status = co_await work;
  pinned.note_use(work.take_event());
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (copies.factor != 1.0 && !takes_kernel(gpu, copies)) {
    scale_here(copies, [](const Move& move) -> const void* { return move.target; });
  }
  co_return Status::ok();
}

Task copy_up(GpuThread& thread, GpuCopies copies, GpuBuffer& pinned) {
  Gpu& gpu = thread.gpu();
  const CuStream stream = gpu.upload_stream();
  if (copies.factor != 1.0 && !takes_kernel(gpu, copies)) {
    scale_here(copies, [](const Move& move) { return move.source; });
  }
  AwaitableGpuWork work(thread, stream, [&] {
    return queue(gpu, copies, stream, [&](const Move& move, size_t bytes) {
      return gpu.driver().copy_to_device(reinterpret_cast<CuPointer>(move.target), move.source,
                                         bytes, stream);
    });
  });
  const Status status = co_await work;
  pinned.note_use(work.take_event());
  co_return status;
}

}  // namespace perseus
