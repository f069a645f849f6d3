// Memory that is on the CPU, on the GPU, or the same on both; a caller that asks for one side gets
// the data copied there first. Copies run on the GPU's default stream, ahead of a later kernel.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "caffe/common.hpp"

namespace caffe {

// The few calls of CUDA's driver that this takes. One GPU, one thread.
class Driver {
 public:
  static Driver& get() {
    static Driver driver;
    return driver;
  }

  uint64_t allocate(size_t bytes) {
    uint64_t memory = 0;
    call<int(uint64_t*, size_t)>("cuMemAlloc_v2", &memory, bytes);
    return memory;
  }

  void free(uint64_t memory) { call<int(uint64_t)>("cuMemFree_v2", memory); }

  void to_gpu(uint64_t to, const void* from, size_t bytes) {
    call<int(uint64_t, const void*, size_t, void*)>("cuMemcpyHtoDAsync_v2", to, from, bytes,
                                                    nullptr);
  }

  void to_cpu(void* to, uint64_t from, size_t bytes) {
    call<int(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2", to, from, bytes, nullptr);
    void* event = nullptr;
    call<int(void**, unsigned)>("cuEventCreate", &event, 0u);
    call<int(void*, void*)>("cuEventRecord", event, nullptr);
    while (function<int(void*)>("cuEventQuery")(event) != 0) continue;
    call<int(void*)>("cuEventDestroy_v2", event);
  }

 private:
  Driver() {
    const char* folder = std::getenv("PERSEUS_CUDA_LIBRARY_PATH");
    const string prefix = folder == nullptr ? "" : string(folder) + "/";
    library_ = dlopen((prefix + "libcuda.so.1").c_str(), RTLD_NOW);
    CHECK(library_ != nullptr);
    int device = 0;
    void* context = nullptr;
    call<int(unsigned)>("cuInit", 0u);
    call<int(int*, int)>("cuDeviceGet", &device, 0);
    call<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, device);
    call<int(void*)>("cuCtxPushCurrent_v2", context);
  }

  template <typename Function>
  Function* function(const char* name) {
    void* const found = dlsym(library_, name);
    CHECK(found != nullptr);
    return reinterpret_cast<Function*>(found);
  }

  template <typename Function, typename... Arguments>
  void call(const char* name, Arguments... arguments) {
    CHECK(function<Function>(name)(arguments...) == 0);
  }

  void* library_ = nullptr;
};

class SyncedMemory {
 public:
  explicit SyncedMemory(size_t bytes) : cpu_(bytes) {}
  SyncedMemory(const SyncedMemory&) = delete;
  SyncedMemory& operator=(const SyncedMemory&) = delete;
  ~SyncedMemory() {
    if (gpu_ != 0) Driver::get().free(gpu_);
  }

  const void* cpu_data() {
    if (head_ == kGpu) {
      Driver::get().to_cpu(cpu_.data(), gpu_, cpu_.size());
      head_ = kBoth;
    }
    return cpu_.data();
  }

  void* mutable_cpu_data() {
    cpu_data();
    head_ = kCpu;
    return cpu_.data();
  }

  void* mutable_gpu_data() {
    if (gpu_ == 0) gpu_ = Driver::get().allocate(cpu_.size());
    if (head_ == kCpu) Driver::get().to_gpu(gpu_, cpu_.data(), cpu_.size());
    head_ = kGpu;
    return reinterpret_cast<void*>(gpu_);
  }

 private:
  enum Head { kCpu, kGpu, kBoth };

  vector<char> cpu_;
  uint64_t gpu_ = 0;
  Head head_ = kCpu;
};

}  // namespace caffe
