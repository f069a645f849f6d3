// A GPU of this process, with the resources that are kept for the life of the process: its primary
// context, which frameworks use too, streams, events, pinned host memory and kernels. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/cuda/driver.h"
#include "device/cuda/libraries.h"
#include "device/cuda/move_launch.h"

namespace perseus {

class Gpu;

// Makes the GPU's context the calling thread's current one while this exists.
class CurrentContext {
 public:
  explicit CurrentContext(const Gpu& gpu);
  CurrentContext(const CurrentContext&) = delete;
  ~CurrentContext();

  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  Status status_;
};

// While this exists, CUDA calls of the calling thread do not invalidate a capture into a CUDA
// graph.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const CudaDriver& driver) : driver_(driver) {
    driver_.exchange_capture_mode(&mode_);
  }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  ~RelaxedCaptureMode() { driver_.exchange_capture_mode(&mode_); }

 private:
  const CudaDriver& driver_;
  int mode_ = kCuCaptureRelaxed;
};

// An event from the GPU's pool, shared by its copies and returned to the pool with the last of
// them.
class GpuEvent {
 public:
  GpuEvent() = default;
  GpuEvent(const GpuEvent& other) : shared_(other.shared_) {
    if (shared_ != nullptr) shared_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  GpuEvent(GpuEvent&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  GpuEvent& operator=(GpuEvent other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~GpuEvent();

  explicit operator bool() const { return shared_ != nullptr; }
  CuEvent get() const { return shared_ != nullptr ? shared_->event : nullptr; }

 private:
  friend class Gpu;
  struct Shared {
    Gpu* gpu;
    CuEvent event;
    std::atomic<int> owners;
  };
  explicit GpuEvent(Shared* shared) : shared_(shared) {}
  Shared* shared_ = nullptr;
};

// Memory from the GPU's pools: pinned host memory, which both the GPU and this process's threads
// can access, or memory on the GPU.
class GpuBuffer {
 public:
  enum class Kind { kPinned, kDevice };

  GpuBuffer() = default;
  GpuBuffer(GpuBuffer&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        capacity_(other.capacity_),
        kind_(other.kind_),
        uses_(std::move(other.uses_)) {}
  GpuBuffer& operator=(GpuBuffer&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(kind_, other.kind_);
    std::swap(uses_, other.uses_);
    return *this;
  }
  // Returns the memory to the pool, which does not reuse it before its uses are over.
  ~GpuBuffer();

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  // The GPU may access the memory until this event.
  void note_use(GpuEvent until) {
    if (until) uses_.push_back(std::move(until));
  }

 private:
  friend class Gpu;
  Gpu* gpu_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  Kind kind_ = Kind::kPinned;
  std::vector<GpuEvent> uses_;
};

class Gpu {
 public:
  // GPU `ordinal` of this process, opened at its first use. `folders`: see load_cuda.
  static Result<Gpu*> get(const std::string& folders, int ordinal);
  // The GPU that the memory is on.
  static Result<Gpu*> of_memory(const std::string& folders, const void* pointer);
  // Frees memory from allocate, which waits for all work on the GPU. Does nothing and returns false
  // for any other pointer.
  static bool free(void* pointer);
  // The same without waiting, for memory that only work queued on the stream so far still uses.
  // Returns it to the pool, from which allocate takes it once that work is done.
  static bool free_on_stream(void* pointer, CuStream stream);
  // CUDA does not survive a fork. The child starts without GPUs, and the driver returns an error if
  // it uses CUDA.
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  // The same for all processes that see this GPU.
  const CuUuid& uuid() const { return uuid_; }
  // Null if the kernels are missing in this build or for this GPU: see why_no_kernels.
  const MoveKernels* kernels() const { return kernels_.get(); }
  const std::string& why_no_kernels() const { return why_no_kernels_; }
  // For copies from the GPU to the host, and to the GPU.
  CuStream download_stream() const { return download_; }
  CuStream upload_stream() const { return upload_; }

  // Returns ok if the memory, of at least one byte, can be that of a tensor on this GPU with
  // elements of `element_bytes`, else the reason why not.
  Status check_memory(const void* pointer, size_t bytes, size_t element_bytes) const;

  // The functions below need a CurrentContext.
  Result<GpuEvent> take_event();
  Result<GpuBuffer> take_buffer(GpuBuffer::Kind kind, size_t bytes);
  // Memory on the GPU for a result. Comes from the pool unless it is large.
  Result<std::byte*> allocate(size_t bytes);
  // Returns whether the work before the event is done, or an error of that or earlier work.
  Result<bool> is_done(const GpuEvent& event) const;
  // Makes the stream wait for the event.
  Status make_stream_wait(CuStream stream, const GpuEvent& event) const;
  // Returns whether the stream is being captured into a CUDA graph.
  Result<bool> is_captured(CuStream stream) const;
  // Records an event on the stream. An error if the stream is being captured, since the engine's
  // work cannot be part of a graph.
  Result<GpuEvent> record(CuStream stream);

 private:
  friend class CurrentContext;
  friend class GpuEvent;
  friend class GpuBuffer;

  Gpu(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status open();
  void give_back(GpuEvent::Shared* shared);
  void give_back(GpuBuffer buffer);
  // Allocates on the GPU. If that fails, frees the pool's idle memory and tries again.
  Result<std::byte*> allocate_on_gpu(size_t bytes);
  Result<std::byte*> allocate_pinned(size_t bytes);
  // Returns whether all uses of the buffer are over.
  bool is_idle(const GpuBuffer& buffer) const;
  void free_idle();
  // Returns whether the pool may keep this much more idle memory for later results.
  bool has_room_for(size_t bytes);

  const CudaDriver& driver_;
  const int ordinal_;
  std::string name_;
  CuUuid uuid_{};
  CuContext context_ = nullptr;
  CuStream download_ = nullptr, upload_ = nullptr;
  std::unique_ptr<MoveKernels> kernels_;
  std::string why_no_kernels_;

  std::mutex mutex_;
  std::vector<GpuEvent::Shared*> free_events_;
  std::array<std::vector<GpuBuffer>, 48> free_buffers_[2];  // by kind and power of two
  size_t idle_bytes_ = 0;                                   // of free buffers on the GPU
};

}  // namespace perseus
