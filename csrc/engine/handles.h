// Handles of operations: numbers that are never used twice, so that a stale one is an error and not
// somebody else's result. They outlive the engine that made them. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "engine/operation.h"

namespace perseus {

class Handles {
 public:
  int64_t add(OperationPtr operation) {
    std::lock_guard lock(mutex_);
    operation->handle = ++last_;
    operations_.emplace(last_, std::move(operation));
    return last_;
  }
  // Null if there is no such handle.
  OperationPtr find(int64_t handle) const {
    std::lock_guard lock(mutex_);
    const auto found = operations_.find(handle);
    return found == operations_.end() ? nullptr : found->second;
  }
  void remove(int64_t handle) {
    OperationPtr last_owner;  // freed after the lock
    std::lock_guard lock(mutex_);
    const auto found = operations_.find(handle);
    if (found == operations_.end()) return;
    last_owner = std::move(found->second);
    operations_.erase(found);
  }

 private:
  mutable std::mutex mutex_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, OperationPtr> operations_;
};

}  // namespace perseus
