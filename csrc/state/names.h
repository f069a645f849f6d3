// Maps names of operations to small ids, for the life of the process, so that a framework submits
// an index at each step and not a string. Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "negotiation/description.h"

namespace perseus {

// Names are kept together in few large blocks of memory. Allocated one by one they would lie
// between blocks that the caller allocates and frees, such as the results of operations, and
// fragment that memory.
class Names {
 public:
  struct Entry {
    int32_t process_set = 0;
    OperationKind kind = OperationKind::kAllreduce;
    std::string_view key;
  };

  // Returns the id of this name. A new name gets the next id.
  int32_t id_of(int32_t process_set, OperationKind kind, std::string_view name);
  // The entry is valid for the life of the process. kInvalidArgument if there is no such id.
  Result<const Entry*> find(int32_t id) const;

  // Marks the name as in flight. Returns false if it is already.
  bool take(int32_t id);
  void give_back(int32_t id);
  bool is_in_flight(int32_t id) const;

  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  // In the child nothing is in flight.
  void after_fork_in_child();

 private:
  struct Slot {
    Entry entry;
    bool in_flight = false;
  };
  static constexpr size_t kBlockBytes = 64 << 10;

  mutable std::mutex mutex_;
  std::pmr::monotonic_buffer_resource memory_{kBlockBytes};
  std::pmr::deque<Slot> slots_{&memory_};  // a deque does not move its elements
  std::pmr::unordered_map<std::string_view, int32_t> ids_{&memory_};
};

}  // namespace perseus
