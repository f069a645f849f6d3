// Handles of operations: numbers that are never used twice, so that a stale one is an error and not
// somebody else's result. They outlive the engine that made them, and its process's forks know
// them, to say whose they are. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "state/operation.h"

namespace perseus {

class Handles {
 public:
  int64_t add(OperationPtr operation) {
    std::lock_guard lock(mutex_);
    if (2 * (count_ + 1) > slots_.size()) grow();
    // A number whose place is taken, by an operation that has long not been released, is left out.
    do ++last_;
    while (slot_of(last_) != nullptr);
    operation->handle = last_;
    slot_of(last_) = std::move(operation);
    ++count_;
    return last_;
  }
  // Null if there is no such handle.
  OperationPtr find(int64_t handle) const {
    std::lock_guard lock(mutex_);
    return has(handle) ? slot_of(handle) : nullptr;
  }
  // The same for a handle of the process that this one was forked from. Only the key of such an
  // operation may be looked at: an engine's thread may have been at work on the rest.
  const Operation* find_inherited(int64_t handle) const {
    std::lock_guard lock(mutex_);
    const auto found = inherited_.find(handle);
    return found == inherited_.end() ? nullptr : found->second;
  }
  void remove(int64_t handle) {
    OperationPtr last_owner;  // recycled after the lock
    std::lock_guard lock(mutex_);
    if (!has(handle)) return;
    last_owner = std::move(slot_of(handle));
    --count_;
  }

  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  // The numbers go on, so that the child's own handles are no inherited ones.
  void after_fork_in_child() {
    // Never destroyed: they are in the hands of an engine that is not here.
    for (OperationPtr& operation : *new std::vector<OperationPtr>(std::move(slots_))) {
      if (operation != nullptr) inherited_.emplace(operation->handle, operation.get());
    }
    slots_ = std::vector<OperationPtr>(kInitialCapacity);
    count_ = 0;
    mutex_.unlock();
  }

 private:
  static constexpr size_t kInitialCapacity = 64;

  size_t place_of(int64_t handle) const {
    return static_cast<size_t>(handle) & (slots_.size() - 1);
  }
  OperationPtr& slot_of(int64_t handle) { return slots_[place_of(handle)]; }
  const OperationPtr& slot_of(int64_t handle) const { return slots_[place_of(handle)]; }
  bool has(int64_t handle) const {
    return slot_of(handle) != nullptr && slot_of(handle)->handle == handle;
  }
  // Numbers that differ in their low bits still do with one bit more.
  void grow() {
    std::vector<OperationPtr> old(slots_.size() * 2);
    old.swap(slots_);
    for (OperationPtr& operation : old) {
      if (operation != nullptr) slot_of(operation->handle) = std::move(operation);
    }
  }

  mutable std::mutex mutex_;
  int64_t last_ = 0;
  size_t count_ = 0;
  // By the low bits of the handle; a power of two of them, at most half of them in use.
  std::vector<OperationPtr> slots_ = std::vector<OperationPtr>(kInitialCapacity);
  // In a forked child: what its parents had not released.
  std::unordered_map<int64_t, const Operation*> inherited_;
};

}  // namespace perseus
