// Handles of operations. They are numbers that are never used twice, so that using a stale one is
// an error and does not yield another operation's result. They outlive the engine that made them. A
// forked process still knows its parent's handles, to give a proper error. Any thread.
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
    // Skip a number whose slot is taken by an old operation that has not been released.
    do ++last_;
    while (slot_of(last_) != nullptr);
    operation->handle = last_;
    slot_of(last_) = std::move(operation);
    ++count_;
    return last_;
  }
  // Returns null if there is no such handle.
  OperationPtr find(int64_t handle) const {
    std::lock_guard lock(mutex_);
    return has(handle) ? slot_of(handle) : nullptr;
  }
  // The same for a handle of the process that this one was forked from. Only the key of such an
  // operation may be read: an engine's thread may have been working on the rest.
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
  // The numbers go on, so that the child's own handles differ from the inherited ones.
  void after_fork_in_child() {
    // These are never destroyed: they belong to an engine whose threads do not exist in the child.
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
  // Handles that differ in the low bits also differ with one bit more, so slots stay unique.
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
  // By the low bits of the handle. Their number is a power of two; at most half of them are in use.
  std::vector<OperationPtr> slots_ = std::vector<OperationPtr>(kInitialCapacity);
  // In a forked child: the operations that its parent had not released.
  std::unordered_map<int64_t, const Operation*> inherited_;
};

}  // namespace perseus
