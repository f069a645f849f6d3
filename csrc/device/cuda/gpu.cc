#include "device/cuda/gpu.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>

#include "device/cuda/cuda_error.h"
#include "device/cuda/kernels_image.h"
#include "observe/log.h"

namespace perseus {
namespace {

// Pinning one page takes about as long as pinning a few.
constexpr size_t kLeastPinned = 64 << 10;
constexpr size_t kLeastOnGpu = 512;
// Larger results are allocated and freed individually, since the pool's power-of-two sizes could
// waste up to half of their memory.
constexpr size_t kLargestPooled = 64 << 20;
// How much idle memory results may leave in the pool, since frameworks may need it.
constexpr size_t kMostIdle = 256 << 20;

// One for the process. Never destroyed, since threads of the host program may have tensors until it
// exits.
struct Registry {
  struct Allocation {
    Gpu* gpu;
    size_t pooled;  // capacity in bytes; 0: too large for the pool
  };
  std::mutex mutex;
  std::map<int, Gpu*> gpus;                     // by ordinal
  std::map<const void*, Allocation> allocated;  // by Gpu::allocate
  std::atomic<bool> has_allocated{false};
};

Registry& registry() {
  static auto& the_one = *new Registry;
  return the_one;
}

std::string allocating(size_t bytes) { return "allocating " + std::to_string(bytes) + " bytes"; }

// Removes and returns the record of memory from allocate; nothing for any other pointer.
std::optional<Registry::Allocation> take_allocation(const void* pointer) {
  Registry& all = registry();
  if (!all.has_allocated.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(all.mutex);
  const auto node = all.allocated.extract(pointer);
  if (node.empty()) return std::nullopt;
  return node.mapped();
}

// The ordinal of the GPU that the memory is on; -1 if it is on none.
int ordinal_of(const CudaDriver& driver, const void* pointer) {
  const auto address = reinterpret_cast<CuPointer>(pointer);
  unsigned type = 0;
  int ordinal = -1;
  const bool is_known =
      driver.pointer_attribute(&type, kCuPointerMemoryType, address) == kCuSuccess &&
      driver.pointer_attribute(&ordinal, kCuPointerDeviceOrdinal, address) == kCuSuccess;
  return is_known && type == kCuMemoryTypeDevice ? ordinal : -1;
}

}  // namespace

CurrentContext::CurrentContext(const Gpu& gpu)
    : driver_(gpu.driver_),
      status_(cuda_status(driver_, driver_.push_context(gpu.context_), "using the GPU's context")) {
}

CurrentContext::~CurrentContext() {
  CuContext popped = nullptr;
  if (status_.is_ok()) driver_.pop_context(&popped);
}

GpuEvent::~GpuEvent() {
  if (shared_ == nullptr || shared_->owners.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  shared_->gpu->give_back(shared_);
}

GpuBuffer::~GpuBuffer() {
  if (gpu_ != nullptr) gpu_->give_back(std::move(*this));
}

Result<Gpu*> Gpu::get(const std::string& folders, int ordinal) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  if (const auto found = all.gpus.find(ordinal); found != all.gpus.end()) return found->second;
  const auto driver = load_cuda(folders).usable_driver();
  if (!driver.is_ok()) return driver.status();
  std::unique_ptr<Gpu> gpu(new Gpu(*driver.value(), ordinal));
  PERSEUS_RETURN_IF_ERROR(gpu->open());
  return all.gpus[ordinal] = gpu.release();
}

Result<Gpu*> Gpu::of_memory(const std::string& folders, const void* pointer) {
  const auto driver = load_cuda(folders).usable_driver();
  if (!driver.is_ok()) return driver.status();
  PERSEUS_RETURN_IF_ERROR(cuda_status(*driver.value(), driver.value()->init(0), "starting CUDA"));
  const int ordinal = ordinal_of(*driver.value(), pointer);
  if (ordinal >= 0) return get(folders, ordinal);
  return Status::invalid_argument("its memory is not on a GPU, though it was said to be");
}

void Gpu::before_fork() { registry().mutex.lock(); }
void Gpu::after_fork_in_parent() { registry().mutex.unlock(); }
void Gpu::after_fork_in_child() {
  registry().gpus.clear();
  registry().allocated.clear();
  registry().mutex.unlock();
}

Status Gpu::open() {
  const auto check = [this](CuResult result, const std::string& what) {
    return cuda_status(driver_, result, what);
  };
  PERSEUS_RETURN_IF_ERROR(check(driver_.init(0), "starting CUDA"));
  int count = 0;
  PERSEUS_RETURN_IF_ERROR(check(driver_.device_count(&count), "counting GPUs"));
  if (ordinal_ < 0 || ordinal_ >= count) {
    return Status::invalid_argument("there is no GPU " + std::to_string(ordinal_) +
                                    ": this process sees " + std::to_string(count) +
                                    " (CUDA_VISIBLE_DEVICES)");
  }
  const std::string which = "GPU " + std::to_string(ordinal_);
  CuDevice device = 0;
  PERSEUS_RETURN_IF_ERROR(check(driver_.device(&device, ordinal_), "opening " + which));
  char name[256] = {};
  if (driver_.device_name(name, sizeof name - 1, device) == kCuSuccess) name_ = name;
  PERSEUS_RETURN_IF_ERROR(check(driver_.device_uuid(&uuid_, device), "identifying " + which));
  PERSEUS_RETURN_IF_ERROR(
      check(driver_.retain_primary_context(&context_, device), "opening the context of " + which));
  const CurrentContext current(*this);
  PERSEUS_RETURN_IF_ERROR(current.status());
  for (CuStream* stream : {&download_, &upload_}) {
    PERSEUS_RETURN_IF_ERROR(check(driver_.create_stream(stream, kCuStreamNonBlocking, 0),
                                  "making a stream on " + which));
  }
  if (kernels_image().empty()) {
    why_no_kernels_ = "Perseus was built without nvcc";
  } else if (auto loaded = MoveKernels::load(driver_, kernels_image()); loaded.is_ok()) {
    kernels_ = std::move(loaded).value();
  } else {
    why_no_kernels_ = loaded.status().message();
  }
  PERSEUS_LOG(kDebug, which << ", " << name_ << ": "
                            << (kernels_ ? "with kernels" : "no kernels: " + why_no_kernels_));
  return {};
}

Status Gpu::check_memory(const void* pointer, size_t bytes, size_t element_bytes) const {
  const auto* const begin = static_cast<const std::byte*>(pointer);
  const int ordinal = ordinal_of(driver_, begin);
  if (ordinal < 0) {
    return Status::invalid_argument("its memory is not on a GPU, though it was said to be on GPU " +
                                    std::to_string(ordinal_));
  }
  if (ordinal != ordinal_) {
    return Status::invalid_argument("its memory is on GPU " + std::to_string(ordinal) +
                                    ", though it was said to be on GPU " +
                                    std::to_string(ordinal_));
  }
  if (ordinal_of(driver_, begin + bytes - 1) != ordinal) {
    return Status::invalid_argument("its memory on the GPU ends before its " +
                                    std::to_string(bytes) + " bytes do");
  }
  // A GPU cannot read unaligned elements, and a context that has tried cannot be used any more.
  if (reinterpret_cast<uintptr_t>(begin) % element_bytes == 0) return {};
  return Status::invalid_argument("its memory does not begin at a multiple of " +
                                  std::to_string(element_bytes) + " bytes, the size of an element");
}

Result<GpuEvent> Gpu::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      GpuEvent::Shared* shared = free_events_.back();
      free_events_.pop_back();
      shared->owners.store(1, std::memory_order_relaxed);
      return GpuEvent(shared);
    }
  }
  CuEvent event = nullptr;
  const CuResult made = driver_.create_event(&event, kCuEventDisableTiming);
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver_, made, "making an event"));
  // Never freed, as the GPU itself.
  return GpuEvent(new GpuEvent::Shared{this, event, 1});
}

void Gpu::give_back(GpuEvent::Shared* shared) {
  std::lock_guard lock(mutex_);
  free_events_.push_back(shared);
}

Result<GpuBuffer> Gpu::take_buffer(GpuBuffer::Kind kind, size_t bytes) {
  const bool is_pinned = kind == GpuBuffer::Kind::kPinned;
  const size_t capacity = std::bit_ceil(std::max(bytes, is_pinned ? kLeastPinned : kLeastOnGpu));
  const size_t size_class = std::bit_width(capacity) - 1;
  auto& pool = free_buffers_[static_cast<int>(kind)];
  if (size_class >= pool.size()) return Status::out_of_memory(allocating(capacity));
  GpuBuffer buffer;
  {
    std::lock_guard lock(mutex_);
    std::vector<GpuBuffer>& free = pool[size_class];
    const auto idle = std::ranges::find_if(
        free, [this](const GpuBuffer& candidate) { return is_idle(candidate); });
    if (idle != free.end()) {
      std::swap(*idle, free.back());
      buffer = std::move(free.back());
      free.pop_back();
      if (!is_pinned) idle_bytes_ -= capacity;
    }
  }
  if (buffer) {
    buffer.uses_.clear();
    return buffer;
  }
  const auto allocated = is_pinned ? allocate_pinned(capacity) : allocate_on_gpu(capacity);
  PERSEUS_RETURN_IF_ERROR(allocated.status());
  buffer.gpu_ = this;
  buffer.data_ = allocated.value();
  buffer.capacity_ = capacity;
  buffer.kind_ = kind;
  return buffer;
}

void Gpu::give_back(GpuBuffer buffer) {
  std::lock_guard lock(mutex_);
  if (buffer.kind_ == GpuBuffer::Kind::kDevice) idle_bytes_ += buffer.capacity_;
  auto& pool = free_buffers_[static_cast<int>(buffer.kind_)];
  pool[std::bit_width(buffer.capacity_) - 1].push_back(std::move(buffer));
}

bool Gpu::has_room_for(size_t bytes) {
  std::lock_guard lock(mutex_);
  return idle_bytes_ + bytes <= kMostIdle;
}

Result<std::byte*> Gpu::allocate(size_t bytes) {
  Registry::Allocation allocation{this, 0};
  std::byte* data = nullptr;
  if (bytes > kLargestPooled) {
    const auto apart = allocate_on_gpu(bytes);
    PERSEUS_RETURN_IF_ERROR(apart.status());
    data = apart.value();
  } else {
    auto taken = take_buffer(GpuBuffer::Kind::kDevice, bytes);
    PERSEUS_RETURN_IF_ERROR(taken.status());
    GpuBuffer& buffer = taken.value();
    allocation.pooled = buffer.capacity_;
    data = std::exchange(buffer.data_, nullptr);
    buffer.gpu_ = nullptr;
  }
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.has_allocated.store(true, std::memory_order_release);
  all.allocated[data] = allocation;
  return data;
}

Result<std::byte*> Gpu::allocate_on_gpu(size_t bytes) {
  CuPointer pointer = 0;
  CuResult made = driver_.allocate(&pointer, bytes);
  if (made == kCuOutOfMemory) {
    free_idle();
    made = driver_.allocate(&pointer, bytes);
  }
  PERSEUS_RETURN_IF_ERROR(
      cuda_status(driver_, made, allocating(bytes) + " on GPU " + std::to_string(ordinal_)));
  return reinterpret_cast<std::byte*>(pointer);
}

Result<std::byte*> Gpu::allocate_pinned(size_t bytes) {
  void* data = nullptr;
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver_, driver_.allocate_host(&data, bytes, kCuHostPortable),
                                      allocating(bytes) + " of pinned memory"));
  return static_cast<std::byte*>(data);
}

bool Gpu::is_idle(const GpuBuffer& buffer) const {
  return std::ranges::all_of(buffer.uses_, [this](const GpuEvent& use) {
    return driver_.query_event(use.get()) == kCuSuccess;
  });
}

void Gpu::free_idle() {
  std::vector<GpuBuffer> idle;
  {
    std::lock_guard lock(mutex_);
    for (auto& free : free_buffers_[static_cast<int>(GpuBuffer::Kind::kDevice)]) {
      const auto used = std::partition(
          free.begin(), free.end(), [this](const GpuBuffer& buffer) { return !is_idle(buffer); });
      std::move(used, free.end(), std::back_inserter(idle));
      free.erase(used, free.end());
    }
    for (const GpuBuffer& buffer : idle) idle_bytes_ -= buffer.capacity_;
  }
  for (GpuBuffer& buffer : idle) {
    driver_.free(reinterpret_cast<CuPointer>(std::exchange(buffer.data_, nullptr)));
    buffer.gpu_ = nullptr;
  }
}

bool Gpu::free(void* pointer) {
  const auto allocation = take_allocation(pointer);
  if (!allocation) return false;
  const CurrentContext current(*allocation->gpu);
  const RelaxedCaptureMode relaxed(allocation->gpu->driver_);
  allocation->gpu->driver_.free(reinterpret_cast<CuPointer>(pointer));
  return true;
}

bool Gpu::free_on_stream(void* pointer, CuStream stream) {
  const auto allocation = take_allocation(pointer);
  if (!allocation) return false;
  Gpu& gpu = *allocation->gpu;
  const CurrentContext current(gpu);
  const RelaxedCaptureMode relaxed(gpu.driver_);
  Result<GpuEvent> last_use = GpuEvent();
  const bool is_kept = allocation->pooled > 0 && gpu.has_room_for(allocation->pooled);
  if (is_kept) last_use = gpu.record(stream);
  if (!is_kept || !last_use.is_ok()) {
    gpu.driver_.free(reinterpret_cast<CuPointer>(pointer));
    return true;
  }
  GpuBuffer buffer;
  buffer.gpu_ = &gpu;
  buffer.data_ = static_cast<std::byte*>(pointer);
  buffer.capacity_ = allocation->pooled;
  buffer.kind_ = GpuBuffer::Kind::kDevice;
  buffer.note_use(std::move(last_use).value());
  return true;
}

Result<bool> Gpu::is_done(const GpuEvent& event) const {
  const CuResult result = driver_.query_event(event.get());
  if (result == kCuSuccess) return true;
  if (result == kCuNotReady) return false;
  return cuda_status(driver_, result, "work on GPU " + std::to_string(ordinal_));
}

Status Gpu::make_stream_wait(CuStream stream, const GpuEvent& event) const {
  return cuda_status(driver_, driver_.stream_wait_event(stream, event.get(), 0),
                     "making a stream wait for a result");
}

Result<bool> Gpu::is_captured(CuStream stream) const {
  int capturing = kCuNotCapturing;
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver_, driver_.capture_status(stream, &capturing),
                                      "asking for the stream's state"));
  return capturing != kCuNotCapturing;
}

Result<GpuEvent> Gpu::record(CuStream stream) {
  const auto captured = is_captured(stream);
  PERSEUS_RETURN_IF_ERROR(captured.status());
  if (captured.value()) {
    return Status::invalid_argument(
        "its stream is being captured into a CUDA graph, which cannot contain operations that "
        "ranks "
        "agree on in each step; submit it outside the capture");
  }
  auto event = take_event();
  if (!event.is_ok()) return event;
  PERSEUS_RETURN_IF_ERROR(cuda_status(driver_, driver_.record_event(event.value().get(), stream),
                                      "recording an event on the stream"));
  return event;
}

}  // namespace perseus
