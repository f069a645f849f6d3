// Opens the stand-in libraries for a test, and has functions that many tests need.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/driver.h"
#include "device/cuda/nccl.h"
#include "standin.h"

namespace perseus::standin {

// PERSEUS_STANDIN_FOLDER is set by CMakeLists.txt.
inline void* open_library(const std::string& name) {
  void* library = dlopen((PERSEUS_STANDIN_FOLDER "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return library;
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    std::abort();
  }
}

// Ends the test's process on a failure, since many tests run in processes without GoogleTest.
inline void require(int result, const char* what, int expected = 0) {
  if (result == expected) return;
  std::fprintf(stderr, "%s gave %d\n", what, result);
  std::abort();
}

struct Cuda : CudaDriver {
  // Not in Perseus' table, which does not call it.
  CuResult (*fill)(CuPointer target, unsigned char value, size_t bytes, CuStream stream);
  decltype(&perseus_standin_host_reads) host_reads;
  decltype(&perseus_standin_host_writes) host_writes;
  decltype(&perseus_standin_synchronize) synchronize;
  decltype(&perseus_standin_hold) hold;
  decltype(&perseus_standin_release) release;
  decltype(&perseus_standin_set_capturing) set_capturing;
  decltype(&perseus_standin_calls) calls;
  decltype(&perseus_standin_fail) fail_call;
  decltype(&perseus_standin_fail_collective) fail_collective;
  decltype(&perseus_standin_hang_collective) hang_collective;

  // Initialized, with the device's context current on this thread.
  explicit Cuda(int ordinal = 0) {
    void* library = open_library("libcuda.so.1");
#define PERSEUS_FIND(member, name, parameters) find(library, #name, member);
    PERSEUS_CUDA_DRIVER_FUNCTIONS(PERSEUS_FIND)
#undef PERSEUS_FIND
    find(library, "cuMemsetD8Async", fill);
    find(library, "perseus_standin_host_reads", host_reads);
    find(library, "perseus_standin_host_writes", host_writes);
    find(library, "perseus_standin_synchronize", synchronize);
    find(library, "perseus_standin_hold", hold);
    find(library, "perseus_standin_release", release);
    find(library, "perseus_standin_set_capturing", set_capturing);
    find(library, "perseus_standin_calls", calls);
    find(library, "perseus_standin_fail", fail_call);
    find(library, "perseus_standin_fail_collective", fail_collective);
    find(library, "perseus_standin_hang_collective", hang_collective);
    require(init(0), "cuInit");
    make_current(ordinal);
  }

  void make_current(int ordinal) const {
    CuContext context = nullptr;
    require(retain_primary_context(&context, ordinal), "cuDevicePrimaryCtxRetain");
    require(push_context(context), "cuCtxPushCurrent");
  }
  CuPointer device_memory(size_t bytes) const {
    CuPointer pointer = 0;
    require(allocate(&pointer, bytes), "cuMemAlloc");
    return pointer;
  }
  template <typename Element>
  Element* pinned_memory(size_t elements) const {
    void* pointer = nullptr;
    require(allocate_host(&pointer, elements * sizeof(Element), 0), "cuMemHostAlloc");
    return static_cast<Element*>(pointer);
  }
  CuStream new_stream() const {
    CuStream stream = nullptr;
    require(create_stream(&stream, kCuStreamNonBlocking, 0), "cuStreamCreateWithPriority");
    return stream;
  }
  CuEvent new_event() const {
    CuEvent event = nullptr;
    require(create_event(&event, kCuEventDisableTiming), "cuEventCreate");
    return event;
  }
  void wait_for(CuEvent event) const {
    while (query_event(event) == kCuNotReady) std::this_thread::yield();
  }
};

struct NcclLibrary : Nccl {
  NcclLibrary() {
    void* library = open_library("libnccl.so.2");
#define PERSEUS_FIND(member, name, parameters) find(library, #name, member);
    PERSEUS_NCCL_FUNCTIONS(PERSEUS_FIND)
#undef PERSEUS_FIND
#define PERSEUS_FIND(member, since, name, parameters) find(library, #name, member);
    PERSEUS_NEWER_NCCL_FUNCTIONS(PERSEUS_FIND)
#undef PERSEUS_FIND
    find(library, "ncclGetErrorString", error_text);
  }
};

}  // namespace perseus::standin
