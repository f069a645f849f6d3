// The stand-in for NCCL: its memory functions, and registration of memory.
#include "communicators.h"
#include "device.h"
#include "device/cuda/nccl.h"
#include "failure.h"
#include "injection.h"
#include "simulator.h"
#include "version.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

extern "C" {

PERSEUS_STANDIN_API NcclResult ncclMemAlloc(void** pointer, size_t bytes) {
  require_version(21900, __func__);
  if (const int error = injected(__func__)) return error;
  if (current_device() < 0 || bytes == 0) return kNcclInvalidArgument;
  *pointer = Simulator::get().allocate(bytes, current_device(), false);
  return *pointer == nullptr ? kNcclUnhandledCudaError : kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclMemFree(void* pointer) {
  require_version(21900, __func__);
  if (const int error = injected(__func__)) return error;
  for (const auto& communicator : Communicators::get().all()) {
    if (communicator->is_registered(pointer, 1)) fail("memory is freed that is registered");
  }
  return Simulator::get().release(__func__, pointer) ? kNcclSuccess : kNcclInvalidArgument;
}

PERSEUS_STANDIN_API NcclResult ncclCommRegister(NcclHandle comm, void* buffer, size_t bytes,
                                                void** registered) {
  require_version(21900, __func__);
  if (const int error = injected(__func__)) return error;
  const auto communicator = Communicators::get().find(comm);
  const auto found = Simulator::get().find(buffer);
  if (!communicator || !found || found->is_pinned || found->device != communicator->device) {
    return kNcclInvalidArgument;
  }
  *registered = communicator->register_buffer(buffer, bytes);
  return kNcclSuccess;
}

PERSEUS_STANDIN_API NcclResult ncclCommDeregister(NcclHandle comm, void* registered) {
  require_version(21900, __func__);
  if (const int error = injected(__func__)) return error;
  const auto communicator = Communicators::get().find(comm);
  const bool is_known = communicator && communicator->deregister_buffer(registered);
  return is_known ? kNcclSuccess : kNcclInvalidArgument;
}

}  // extern "C"
