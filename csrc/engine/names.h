// Names of operations and their small ids, for the life of the process: so that what a framework
// does at each step is an index, not a string. Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "negotiation/description.h"

namespace perseus {

class Names {
 public:
  struct Entry {
    int32_t process_set = 0;
    OperationKind kind = OperationKind::kAllreduce;
    std::string key;
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
  mutable std::mutex mutex_;
  std::deque<Slot> slots_;  // which does not move them
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace perseus
