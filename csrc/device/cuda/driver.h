// The functions of the CUDA driver library that Perseus calls, as one table, so that a test can
// substitute a stand-in. They are declared here, with the numbers of the driver's binary interface,
// so that CUDA is not needed to build. NVIDIA's "CUDA Driver API" documents each function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perseus {

using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuModule = struct CuModuleObject*;
using CuFunction = struct CuFunctionObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuPointer = unsigned long long;
struct CuUuid {
  char bytes[16];

  bool operator==(const CuUuid&) const = default;
};

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuNotReady = 600;

// CU_POINTER_ATTRIBUTE_...
inline constexpr int kCuPointerMemoryType = 2;
inline constexpr int kCuPointerDeviceOrdinal = 9;
// CU_MEMORYTYPE_DEVICE
inline constexpr unsigned kCuMemoryTypeDevice = 2;
// CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING, CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kCuStreamNonBlocking = 1;
// A stream's priority; the driver uses the nearest one that the GPU has.
inline constexpr int kCuMostUrgent = -100;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuHostPortable = 1;
// CU_STREAM_CAPTURE_STATUS_NONE
inline constexpr int kCuNotCapturing = 0;
// CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kCuCaptureRelaxed = 2;

// X(member, name in the library, parameters); all return a CuResult.
#define PERSEUS_CUDA_DRIVER_FUNCTIONS(X)                                                          \
  X(init, cuInit, (unsigned flags))                                                               \
  X(driver_version, cuDriverGetVersion, (int* version))                                           \
  X(error_name, cuGetErrorName, (CuResult error, const char** name))                              \
  X(error_text, cuGetErrorString, (CuResult error, const char** text))                            \
  X(device_count, cuDeviceGetCount, (int* count))                                                 \
  X(device, cuDeviceGet, (CuDevice * device, int ordinal))                                        \
  X(device_name, cuDeviceGetName, (char* name, int length, CuDevice device))                      \
  X(device_uuid, cuDeviceGetUuid_v2, (CuUuid * uuid, CuDevice device))                            \
  X(retain_primary_context, cuDevicePrimaryCtxRetain, (CuContext * context, CuDevice device))     \
  X(push_context, cuCtxPushCurrent_v2, (CuContext context))                                       \
  X(pop_context, cuCtxPopCurrent_v2, (CuContext * context))                                       \
  X(pointer_attribute, cuPointerGetAttribute, (void* value, int attribute, CuPointer pointer))    \
  X(allocate, cuMemAlloc_v2, (CuPointer * pointer, size_t bytes))                                 \
  X(free, cuMemFree_v2, (CuPointer pointer))                                                      \
  X(allocate_host, cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                \
  X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                           \
    (void* target, CuPointer source, size_t bytes, CuStream stream))                              \
  X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                         \
    (CuPointer target, const void* source, size_t bytes, CuStream stream))                        \
  X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                         \
    (CuPointer target, CuPointer source, size_t bytes, CuStream stream))                          \
  X(create_stream, cuStreamCreateWithPriority, (CuStream * stream, unsigned flags, int priority)) \
  X(destroy_stream, cuStreamDestroy_v2, (CuStream stream))                                        \
  X(stream_wait_event, cuStreamWaitEvent, (CuStream stream, CuEvent event, unsigned flags))       \
  X(capture_status, cuStreamIsCapturing, (CuStream stream, int* status))                          \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                        \
  X(create_event, cuEventCreate, (CuEvent * event, unsigned flags))                               \
  X(record_event, cuEventRecord, (CuEvent event, CuStream stream))                                \
  X(query_event, cuEventQuery, (CuEvent event))                                                   \
  X(load_module, cuModuleLoadData, (CuModule * module, const void* image))                        \
  X(find_function, cuModuleGetFunction,                                                           \
    (CuFunction * function, CuModule module, const char* name))                                   \
  X(launch, cuLaunchKernel,                                                                       \
    (CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,    \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CuStream stream,                  \
     void** parameters, void** extra))

// Any thread. Functions that need a context use the calling thread's current one.
struct CudaDriver {
#define PERSEUS_MEMBER(member, name, parameters) CuResult(*member) parameters = nullptr;
  PERSEUS_CUDA_DRIVER_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

}  // namespace perseus
