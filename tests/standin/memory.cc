#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "failure.h"

namespace perseus::standin {
namespace {

constexpr int kPattern = 0xdb;
constexpr size_t kAlignment = 256;  // as the driver's

}  // namespace

std::byte* Memory::allocate(size_t bytes, int device, bool is_pinned) {
  void* start = nullptr;
  if (posix_memalign(&start, kAlignment, bytes) != 0) return nullptr;
  std::memset(start, kPattern, bytes);
  auto* const address = static_cast<std::byte*>(start);
  allocations_[reinterpret_cast<uintptr_t>(start)] = {address, bytes, device, is_pinned};
  return address;
}

void Memory::release(const Allocation& allocation) {
  allocations_.erase(reinterpret_cast<uintptr_t>(allocation.start));
  std::free(allocation.start);
}

std::optional<Allocation> Memory::find(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto after = allocations_.upper_bound(at);
  if (after == allocations_.begin()) return std::nullopt;
  const auto& [start, allocation] = *std::prev(after);
  if (at - start >= allocation.bytes) return std::nullopt;
  return allocation;
}

void Memory::check(const char* call, const Access& access, int device) const {
  if (access.bytes == 0) return;
  const std::string what =
      std::string(call) + (access.writes ? " writes " : " reads ") + std::to_string(access.bytes);
  const std::optional<Allocation> found = find(access.address);
  if (!found) {
    if (access.place != Place::kHost) fail(what + " bytes of memory that CUDA did not allocate");
    if (access.address == nullptr) fail(what + " bytes at null");
    return;
  }
  const size_t offset = static_cast<const std::byte*>(access.address) - found->start;
  if (access.bytes > found->bytes - offset) {
    fail(what + " bytes at " + std::to_string(offset) + " of an allocation of " +
         std::to_string(found->bytes));
  }
  if (found->is_pinned) {
    if (access.place == Place::kDevice) fail(what + " bytes of the host's memory as a device's");
  } else if (access.place == Place::kHost) {
    fail(what + " bytes of a device's memory as the host's");
  } else if (found->device != device) {
    fail(what + " bytes of device " + std::to_string(found->device) + " on device " +
         std::to_string(device));
  }
}

}  // namespace perseus::standin
