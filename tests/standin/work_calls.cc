// The driver's functions that put work on a stream.
#include <cstring>
#include <memory>
#include <string>

#include "device.h"
#include "failure.h"
#include "host_kernels.h"
#include "kernel.h"
#include "simulator.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

namespace {

CuResult copy(const char* call, void* target, Place target_place, const void* source,
              Place source_place, size_t bytes, CuStream stream) {
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found) return kInvalidHandle;
  if (bytes == 0) return kCuSuccess;
  const Access reads{source, bytes, false, source_place};
  const Access writes{target, bytes, true, target_place};
  Simulator::get().launch(*found, call, {reads, writes},
                          [=] { std::memmove(target, source, bytes); });
  return kCuSuccess;
}

void* device_address(CuPointer pointer) { return reinterpret_cast<void*>(pointer); }

// A function of a module that was loaded on this device.
struct LoadedKernel {
  Kernel kernel;
  int device;
};

}  // namespace

extern "C" {

PERSEUS_STANDIN_API CuResult cuMemcpyDtoHAsync_v2(void* target, CuPointer source, size_t bytes,
                                                  CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  return copy(__func__, target, Place::kHost, device_address(source), Place::kDevice, bytes,
              stream);
}

PERSEUS_STANDIN_API CuResult cuMemcpyHtoDAsync_v2(CuPointer target, const void* source,
                                                  size_t bytes, CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  return copy(__func__, device_address(target), Place::kDevice, source, Place::kHost, bytes,
              stream);
}

PERSEUS_STANDIN_API CuResult cuMemcpyDtoDAsync_v2(CuPointer target, CuPointer source, size_t bytes,
                                                  CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  return copy(__func__, device_address(target), Place::kDevice, device_address(source),
              Place::kDevice, bytes, stream);
}

PERSEUS_STANDIN_API CuResult cuMemsetD8Async(CuPointer target, unsigned char value, size_t bytes,
                                             CuStream stream) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found) return kInvalidHandle;
  void* const address = device_address(target);
  Simulator::get().launch(*found, __func__, {{address, bytes, true, Place::kEither}},
                          [=] { std::memset(address, value, bytes); });
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuModuleLoadData(CuModule* module, const void* image) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (image == nullptr) return kInvalidValue;
  *module = reinterpret_cast<CuModule>(static_cast<uintptr_t>(current_device()) + 1);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuModuleGetFunction(CuFunction* function, CuModule module,
                                                 const char* name) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (module == nullptr) return kInvalidHandle;
  const auto kernel = kernel_of(name);
  if (!kernel) return kNotFound;
  // Never freed, since modules are never unloaded and reports of earlier work name it.
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::map<std::pair<CuModule, std::string>, LoadedKernel>;
  std::lock_guard lock(mutex);
  const int device = static_cast<int>(reinterpret_cast<uintptr_t>(module)) - 1;
  auto& entry = loaded.try_emplace({module, name}, LoadedKernel{*kernel, device}).first->second;
  *function = reinterpret_cast<CuFunction>(&entry);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y,
                                            unsigned grid_z, unsigned block_x, unsigned block_y,
                                            unsigned block_z, unsigned shared_bytes,
                                            CuStream stream, void** parameters, void** extra) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (function == nullptr || parameters == nullptr) return kInvalidValue;
  const auto& loaded = *reinterpret_cast<const LoadedKernel*>(function);
  const Kernel& kernel = loaded.kernel;
  const auto found = Simulator::get().stream(stream, current_device());
  if (!found || found->device != current_device() || loaded.device != current_device()) {
    return kInvalidHandle;
  }
  // Work is kept as a copyable function.
  const auto table = std::make_shared<const MoveTable>(*static_cast<MoveTable*>(parameters[0]));
  if (grid_x != table->blocks || grid_y != 1 || grid_z != 1) {
    fail(kernel.name + " launched with a grid of " + std::to_string(grid_x) + " for " +
         std::to_string(table->blocks) + " blocks");
  }
  if (block_x != kMoveThreads || block_y != 1 || block_z != 1) {
    fail(kernel.name + " launched with blocks of " + std::to_string(block_x) + " threads");
  }
  if (table->count > MoveTable::kCapacity) {
    fail(kernel.name + " launched with " + std::to_string(table->count) + " runs");
  }
  Simulator::get().launch(*found, kernel.name.c_str(), accesses_of(kernel, *table),
                          [&kernel, table] {
                            if (!run_kernel(kernel.name, *table)) fail("no " + kernel.name);
                          });
  return kCuSuccess;
}

}  // extern "C"
