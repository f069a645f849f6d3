// The driver's memory functions.
#include "device.h"
#include "simulator.h"

using namespace perseus;           // NOLINT: the exported functions belong to no namespace
using namespace perseus::standin;  // NOLINT

extern "C" {

PERSEUS_STANDIN_API CuResult cuMemAlloc_v2(CuPointer* pointer, size_t bytes) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (bytes == 0) return kInvalidValue;
  std::byte* start = Simulator::get().allocate(bytes, current_device(), false);
  if (start == nullptr) return kCuOutOfMemory;
  *pointer = reinterpret_cast<CuPointer>(start);
  return kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuMemFree_v2(CuPointer pointer) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (pointer == 0) return kCuSuccess;
  const void* start = reinterpret_cast<const void*>(pointer);
  return Simulator::get().release(__func__, start) ? kCuSuccess : kInvalidValue;
}

PERSEUS_STANDIN_API CuResult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (const CuResult error = enter(__func__, Needs::kContext)) return error;
  if (bytes == 0 || (flags & ~kCuHostPortable) != 0) return kInvalidValue;
  *pointer = Simulator::get().allocate(bytes, current_device(), true);
  return *pointer == nullptr ? kCuOutOfMemory : kCuSuccess;
}

PERSEUS_STANDIN_API CuResult cuPointerGetAttribute(void* value, int attribute, CuPointer pointer) {
  if (const CuResult error = enter(__func__, Needs::kInit)) return error;
  const auto found = Simulator::get().find(reinterpret_cast<const void*>(pointer));
  if (!found) return kInvalidValue;
  constexpr unsigned kMemoryTypeHost = 1;
  switch (attribute) {
    case kCuPointerMemoryType:
      *static_cast<unsigned*>(value) = found->is_pinned ? kMemoryTypeHost : kCuMemoryTypeDevice;
      return kCuSuccess;
    case kCuPointerDeviceOrdinal: *static_cast<int*>(value) = found->device; return kCuSuccess;
    default: return kInvalidValue;
  }
}

void perseus_standin_host_reads(const void* bytes, size_t count) {
  Simulator::get().host_touches("the host", bytes, count, false);
}

void perseus_standin_host_writes(void* bytes, size_t count) {
  Simulator::get().host_touches("the host", bytes, count, true);
}

}  // extern "C"
