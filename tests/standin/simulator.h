// The state of the process's devices: memory, streams, events, and the order that they imply. The
// exported functions and the stand-in for NCCL are thin layers over it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "access_history.h"
#include "device/cuda/driver.h"
#include "memory.h"
#include "standin.h"
#include "stream.h"

namespace perseus::standin {

// Any thread. The order that it checks follows from the order of the calls.
class PERSEUS_STANDIN_API Simulator {
 public:
  // Lives as long as the process, since its threads do.
  static Simulator& get();

  std::byte* allocate(size_t bytes, int device, bool is_pinned);
  // Returns false if there is no such allocation on a device. Ends the process if the host has not
  // seen all work on it done.
  bool release(const char* call, const void* start);
  std::optional<Allocation> find(const void* address);
  void host_touches(const char* what, const void* bytes, size_t count, bool writes);

  CuStream create_stream(int device);
  bool destroy_stream(CuStream stream);
  // Null means the device's null stream. Returns nothing if there is no such stream.
  std::shared_ptr<Stream> stream(CuStream stream, int device);
  // Checks the memory that the work will access, and queues it. `name` lives as long as the
  // process.
  void launch(Stream& stream, const char* name, const std::vector<Access>& accesses,
              std::function<void()> work);
  void synchronize();

  CuEvent create_event(int device);
  bool destroy_event(CuEvent event);
  // -1 if there is no such event.
  int device_of(CuEvent event);
  void record(CuEvent event, Stream& stream);
  void wait(Stream& stream, CuEvent event);
  // Returns whether the last record has been reached; if so, the host has seen it.
  bool query(CuEvent event);

 private:
  struct Event {
    int device;
    std::shared_ptr<Mark> last;
  };

  std::mutex mutex_;
  Memory memory_;
  AccessHistory history_;
  Clock host_;
  size_t streams_made_ = 0;
  std::map<CuStream, std::shared_ptr<Stream>> streams_;
  std::map<int, std::shared_ptr<Stream>> null_streams_;  // by device
  std::map<CuEvent, Event> events_;
  uintptr_t events_made_ = 0;
};

}  // namespace perseus::standin
