// The memory of the devices and the pinned memory of the host, all of it plain memory here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace perseus::standin {

enum class Place { kDevice, kHost, kEither };  // kHost: pinned or not; kEither: not unpinned

struct Access {
  const void* address = nullptr;
  size_t bytes = 0;
  bool writes = false;
  Place place = Place::kDevice;
};

struct Allocation {
  std::byte* start;
  size_t bytes;
  int device;
  bool is_pinned;  // host memory, allocated while the device was the current one
};

// Not thread-safe.
class Memory {
 public:
  // Filled with a pattern that no test mistakes for its data. Null if there is no memory.
  std::byte* allocate(size_t bytes, int device, bool is_pinned);
  void release(const Allocation& allocation);
  // The allocation that contains the address.
  std::optional<Allocation> find(const void* address) const;
  // Ends the process unless `call` may access this on this device.
  void check(const char* call, const Access& access, int device) const;

 private:
  std::map<uintptr_t, Allocation> allocations_;
};

}  // namespace perseus::standin
