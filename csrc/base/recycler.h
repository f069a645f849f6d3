// Shared objects for the steady path, where nothing may allocate. When the last owner releases an
// object, it is kept for the next take(), with the memory of its strings and vectors. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace perseus {

// T is default-constructible, and T::recycle() releases everything that it holds except memory.
template <typename T>
class Recycler {
 public:
  Recycler() = default;
  Recycler(const Recycler&) = delete;  // objects in use refer to their recycler

  // A new object, or one that has been recycled.
  std::shared_ptr<T> take() {
    Slot* slot = free_slot();
    return std::shared_ptr<T>(
        &slot->object, [](T* object) { object->recycle(); }, ControlBlock<T>(*this, *slot));
  }

  // Called around a fork, so that the child can use the recycler.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  // Room for shared_ptr's control block: two counts, a deleter and an allocator.
  static constexpr size_t kControlBytes = 64;
  struct Slot {
    T object;
    alignas(std::max_align_t) std::byte control[kControlBytes];
  };

  // The allocator of that control block: gives shared_ptr the memory beside the object.
  // Deallocation is shared_ptr's last act; then nothing refers to the object any more, not even a
  // weak_ptr.
  template <typename U>
  struct ControlBlock {
    using value_type = U;
    ControlBlock(Recycler& its_recycler, Slot& its_slot)
        : recycler(&its_recycler), slot(&its_slot) {}
    template <typename V>
    ControlBlock(const ControlBlock<V>& other)  // NOLINT: implicit, as allocators are converted
        : recycler(other.recycler), slot(other.slot) {}

    U* allocate(size_t) {
      static_assert(sizeof(U) <= kControlBytes && alignof(U) <= alignof(std::max_align_t));
      return reinterpret_cast<U*>(slot->control);
    }
    void deallocate(U*, size_t) { recycler->give_back(slot); }
    bool operator==(const ControlBlock&) const = default;

    Recycler* recycler;
    Slot* slot;
  };

  Slot* free_slot() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      slots_.push_back(std::make_unique<Slot>());
      free_.reserve(slots_.size());  // so that giving back cannot fail
      return slots_.back().get();
    }
    Slot* slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void give_back(Slot* slot) {
    std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_;  // all, free or in use
  std::vector<Slot*> free_;
};

}  // namespace perseus
