#include "device.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "injection.h"
#include "settings.h"

namespace perseus::standin {
namespace {

std::atomic<bool> is_initialized = false;
// The devices of the contexts that the thread has pushed. There are only primary contexts, one for
// each device.
thread_local std::vector<int> pushed;

// Never null: 1 + the ordinal.
CuContext context_of(int device) {
  return reinterpret_cast<CuContext>(static_cast<uintptr_t>(device) + 1);
}

bool exists(CuDevice device) { return device >= 0 && device < settings().gpus; }

}  // namespace

CuResult enter(const char* function, Needs needs) {
  if (const int error = injected(function); error != 0) return error;
  if (needs != Needs::kNothing && !is_initialized) return kNotInitialized;
  if (needs == Needs::kContext && pushed.empty()) return kInvalidContext;
  return kCuSuccess;
}

int current_device() { return pushed.empty() ? -1 : pushed.back(); }

CuUuid uuid_of(int device) {
  // A process that was forked before this has devices of its own.
  static const uint64_t process =
      settings().shared
          ? 0
          : (uint64_t{std::random_device{}()} << 32 | static_cast<uint32_t>(getpid()));
  CuUuid uuid{};
  std::memcpy(uuid.bytes, &process, sizeof(process));
  std::memcpy(uuid.bytes + sizeof(process), &device, sizeof(device));
  uuid.bytes[15] = 'P';  // so that no UUID is all zeros
  return uuid;
}

}  // namespace perseus::standin

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

extern "C" {

PERSEUS_STANDIN_API CuResult cuInit(unsigned flags) {
  if (const CuResult error = enter(__func__, Needs::kNothing)) return error;
  if (flags != 0) return kInvalidValue;
  if (settings().gpus == 0) return kNoDevice;
  is_initialized = true;
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuDriverGetVersion(int* version) {
  if (const CuResult error = enter(__func__, Needs::kNothing)) return error;
  *version = settings().driver_version;
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuGetErrorName(CuResult error, const char** name) {
  switch (error) {
    case kCuSuccess: *name = "CUDA_SUCCESS"; return kCuSuccess;
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; return kCuSuccess;
    case kCuOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return kCuSuccess;
    case kNotInitialized: *name = "CUDA_ERROR_NOT_INITIALIZED"; return kCuSuccess;
    case kNoDevice: *name = "CUDA_ERROR_NO_DEVICE"; return kCuSuccess;
    case kInvalidDevice: *name = "CUDA_ERROR_INVALID_DEVICE"; return kCuSuccess;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; return kCuSuccess;
    case kInvalidHandle: *name = "CUDA_ERROR_INVALID_HANDLE"; return kCuSuccess;
    case kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; return kCuSuccess;
    case kCuNotReady: *name = "CUDA_ERROR_NOT_READY"; return kCuSuccess;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return kCuSuccess;
    default: *name = nullptr; return kInvalidValue;
  }
}

PERSEUS_STANDIN_API CuResult cuGetErrorString(CuResult error, const char** text) {
  const CuResult result = cuGetErrorName(error, text);
  if (result == kCuSuccess) *text = error == kCuSuccess ? "no error" : "the stand-in's error";
  return result;
}

PERSEUS_STANDIN_API CuResult cuDeviceGetCount(int* count) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  *count = settings().gpus;
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  if (!exists(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuDeviceGetName(char* name, int length, CuDevice device) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  if (!exists(device)) return kInvalidDevice;
  if (length <= 0) return kInvalidValue;
  constexpr std::string_view kName = "Perseus stand-in";
  name[kName.copy(name, static_cast<size_t>(length) - 1)] = '\0';
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuDeviceGetUuid_v2(CuUuid* uuid, CuDevice device) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  if (!exists(device)) return kInvalidDevice;
  *uuid = uuid_of(device);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  if (!exists(device)) return kInvalidDevice;
  *context = context_of(device);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuCtxPushCurrent_v2(CuContext context) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  const int device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  if (!exists(device)) return kInvalidContext;
  pushed.push_back(device);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuCtxPopCurrent_v2(CuContext* context) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (context != nullptr) *context = context_of(pushed.back());
  pushed.pop_back();
  return kCuSuccess;
}

}  // extern "C"
