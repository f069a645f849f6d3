// Names of operations and their small ids, for the life of the process: so that what a framework
// does at each step is an index, not a string. Any thread.
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

// Names are kept together, in few large pieces of memory. Each for itself, they would lie among
// what the caller allocates and frees, such as the results of operations, and break up that memory.
class Names {
 public:
  struct Entry {
    int32_t process_set = 0;
    OperationKind kind = OperationKind::kAllreduce;
    std::string_view key;
  };

  // The id of this name, made on first sight.
  int32_t id_of(int32_t process_set, OperationKind kind, std::string_view name);
  // Good for the life of the process; kInvalidArgument if there is no such id.
  Result<const Entry*> find(int32_t id) const;

  // Marks the name as in flight; false if it is already.
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
  static constexpr size_t kPiece = 64 << 10;

  mutable std::mutex mutex_;
  std::pmr::monotonic_buffer_resource memory_{kPiece};
  std::pmr::deque<Slot> slots_{&memory_};  // which does not move them
  std::pmr::unordered_map<std::string_view, int32_t> ids_{&memory_};
};

}  // namespace perseus
