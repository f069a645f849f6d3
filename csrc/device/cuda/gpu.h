// A GPU of this process, and what is kept of it for the life of the process: its primary context,
// which frameworks work in too, streams, events, pinned host memory, kernels. Any thread.
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

// Makes the GPU's context the calling thread's while this lives.
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

// What the calling thread does while this lives breaks no capture into a CUDA graph.
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

// An event of the GPU's pool, shared by its copies; goes back there with the last of them.
class GpuEvent {
 public:
  GpuEvent() = default;
  GpuEvent(const GpuEvent& other) : place_(other.place_) {
    if (place_ != nullptr) place_->owners.fetch_add(1, std::memory_order_relaxed);
  }
  GpuEvent(GpuEvent&& other) noexcept : place_(std::exchange(other.place_, nullptr)) {}
  GpuEvent& operator=(GpuEvent other) noexcept {
    std::swap(place_, other.place_);
    return *this;
  }
  ~GpuEvent();

  explicit operator bool() const { return place_ != nullptr; }
  CuEvent get() const { return place_ != nullptr ? place_->event : nullptr; }

 private:
  friend class Gpu;
  struct Place {
    Gpu* gpu;
    CuEvent event;
    std::atomic<int> owners;
  };
  explicit GpuEvent(Place* place) : place_(place) {}
  Place* place_ = nullptr;
};

// Memory of the GPU's pools: pinned memory of the host, to which the GPU and this process's threads
// have access, or the GPU's own.
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
  // The memory waits in the pool until its uses are over.
  ~GpuBuffer();

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  // A GPU may touch the memory until then.
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
  // GPU `ordinal` of this process, made at its first use. `folders`: see load_cuda.
  static Result<Gpu*> get(const std::string& folders, int ordinal);
  // The GPU on which the memory is.
  static Result<Gpu*> of_memory(const std::string& folders, const void* pointer);
  // Frees what allocate gave, which waits for all that the GPU has to do; false, and nothing is
  // done, for any other pointer.
  static bool free(void* pointer);
  // The same without a wait, of memory that only the stream's work of now still uses: it goes to
  // the pool, from which allocate takes it when that work is done.
  static bool free_on_stream(void* pointer, CuStream stream);
  // CUDA does not survive a fork: the child begins anew, and the driver tells it that it cannot.
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  // The same for all processes that see this GPU.
  const CuUuid& uuid() const { return uuid_; }
  // Null where the kernels are missing, in this build or for this GPU: see why_no_kernels.
  const MoveKernels* kernels() const { return kernels_.get(); }
  const std::string& why_no_kernels() const { return why_no_kernels_; }
  // What comes from the GPU to the host, and what goes there.
  CuStream download_stream() const { return download_; }
  CuStream upload_stream() const { return upload_; }

  // Why the memory, of at least one byte, cannot be used as that of a tensor on this GPU, whose
  // elements are so long; ok if it can.
  Status check_memory(const void* pointer, size_t bytes, size_t element_bytes) const;

  // From here on in a CurrentContext.
  Result<GpuEvent> take_event();
  Result<GpuBuffer> take_buffer(GpuBuffer::Kind kind, size_t bytes);
  // Memory on the GPU, for a result: from the pool, unless it is large.
  Result<std::byte*> allocate(size_t bytes);
  // Whether all work that was recorded is done; an error of that or of earlier work.
  Result<bool> is_done(const GpuEvent& event) const;
  // Has the stream wait for the event.
  Status make_stream_wait(CuStream stream, const GpuEvent& event) const;
  // Whether the stream is being captured into a CUDA graph.
  Result<bool> is_captured(CuStream stream) const;
  // Refused where it is: what happens in the engine is not the graph's.
  Result<GpuEvent> record(CuStream stream);

 private:
  friend class CurrentContext;
  friend class GpuEvent;
  friend class GpuBuffer;

  Gpu(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status open();
  void give_back(GpuEvent::Place* place);
  void give_back(GpuBuffer buffer);
  // On the GPU; if that is full, what lies idle in the pool goes back first.
  Result<std::byte*> allocate_on_gpu(size_t bytes);
  Result<std::byte*> allocate_pinned(size_t bytes);
  // Whether nothing uses it any more.
  bool is_idle(const GpuBuffer& buffer) const;
  void free_idle();
  // Whether so much more may lie in the pool for results to come.
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
  std::vector<GpuEvent::Place*> free_events_;
  std::array<std::vector<GpuBuffer>, 48> free_buffers_[2];  // by kind and power of two
  size_t idle_bytes_ = 0;                                   // of these, on the GPU
};

}  // namespace perseus
