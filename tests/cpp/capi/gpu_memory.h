// Tensors in the memory of a GPU, for tests: of the stand-in, where that is what the driver is.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <vector>

#include "capi/world.h"
#include "device/cuda/libraries.h"

namespace perseus::test {

// With the stand-in for CUDA and NCCL, whose work takes its time.
inline Environment with_standin(Environment more = {}) {
  Environment environment = {{"PERSEUS_CUDA_LIBRARY_PATH", PERSEUS_STANDIN_FOLDER},
                             {"PERSEUS_STANDIN_DELAY_US", "300"}};
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

// The driver that the ranks use, in this process.
inline const CudaDriver& cuda() {
  static const CudaDriver& driver =
      load_cuda(std::getenv("PERSEUS_CUDA_LIBRARY_PATH")).driver.functions;
  return driver;
}

#define REQUIRE_CUDA(call) REQUIRE((call) == ::perseus::kCuSuccess)

// A GPU in use by this process, with a stream as a framework would have.
class TestGpu {
 public:
  explicit TestGpu(int ordinal = 0) : ordinal_(ordinal) {
    CuDevice device = 0;
    REQUIRE_CUDA(cuda().init(0));
    REQUIRE_CUDA(cuda().device(&device, ordinal));
    REQUIRE_CUDA(cuda().retain_primary_context(&context_, device));
    const Current current(*this);
    REQUIRE_CUDA(cuda().create_stream(&stream_, kCuStreamNonBlocking, 0));
    REQUIRE_CUDA(cuda().create_event(&event_, kCuEventDisableTiming));
  }
  TestGpu(const TestGpu&) = delete;

  // Its context is this thread's while this lives.
  class Current {
   public:
    explicit Current(const TestGpu& gpu) { REQUIRE_CUDA(cuda().push_context(gpu.context_)); }
    Current(const Current&) = delete;
    ~Current() {
      CuContext popped = nullptr;
      cuda().pop_context(&popped);
    }
  };

  int ordinal() const { return ordinal_; }
  CuStream stream() const { return stream_; }
  // Waits until the stream has done all that it was given.
  void synchronize() const {
    const Current current(*this);
    REQUIRE_CUDA(cuda().record_event(event_, stream_));
    while (cuda().query_event(event_) == kCuNotReady) usleep(50);
  }

 private:
  const int ordinal_;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
  CuEvent event_ = nullptr;
};

// A function of the stand-in's own, from tests/standin/standin.h.
template <typename Function>
Function* standin(const char* name) {
  void* library = dlopen(PERSEUS_STANDIN_FOLDER "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  auto* function = reinterpret_cast<Function*>(dlsym(library, name));
  REQUIRE(function != nullptr);
  return function;
}

// Values of a tensor that lies on a GPU.
template <typename T>
class GpuValues {
 public:
  GpuValues(const TestGpu& gpu, size_t count) : gpu_(gpu), count_(count), host_(count) {
    const TestGpu::Current current(gpu);
    if (count > 0) REQUIRE_CUDA(cuda().allocate(&address_, count * sizeof(T)));
  }
  GpuValues(const TestGpu& gpu, std::vector<T> values) : GpuValues(gpu, values.size()) {
    write(std::move(values));
  }
  GpuValues(const GpuValues&) = delete;
  ~GpuValues() {
    gpu_.synchronize();
    const TestGpu::Current current(gpu_);
    if (count_ > 0) cuda().free(address_);
  }

  T* data() const { return reinterpret_cast<T*>(address_); }
  // The values arrive when the stream reaches the copy; submitting must not wait for that.
  void write(std::vector<T> values) {
    REQUIRE(values.size() == count_);
    gpu_.synchronize();  // of an earlier write, which reads host_
    host_ = std::move(values);
    if (count_ == 0) return;
    const TestGpu::Current current(gpu_);
    REQUIRE_CUDA(cuda().copy_to_device(address_, host_.data(), count_ * sizeof(T), gpu_.stream()));
  }
  std::vector<T> read() const { return read_from(gpu_, data(), count_); }

  static std::vector<T> read_from(const TestGpu& gpu, const void* data, size_t count) {
    std::vector<T> values(count);
    if (count == 0) return values;
    const TestGpu::Current current(gpu);
    REQUIRE_CUDA(cuda().copy_to_host(values.data(), reinterpret_cast<CuPointer>(data),
                                     count * sizeof(T), gpu.stream()));
    gpu.synchronize();
    return values;
  }

 private:
  const TestGpu& gpu_;
  const size_t count_;
  CuPointer address_ = 0;
  std::vector<T> host_;  // pageable memory may be read until the copy has run
};

// Marks a submission's tensors as being on the GPU.
inline Submission& on(const TestGpu& gpu, Submission& submission) {
  submission.raw.device = PERSEUS_CUDA;
  submission.raw.device_index = gpu.ordinal();
  submission.raw.stream = gpu.stream();
  return submission;
}

}  // namespace perseus::test
