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
    Place* place = find_place();
    return std::shared_ptr<T>(
        &place->object, [](T* object) { object->recycle(); }, ControlBlock<T>(*this, *place));
  }

  // Called around a fork, so that the child can use the recycler.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  // Room for shared_ptr's control block: two counts, a deleter and an allocator.
  static constexpr size_t kControlBytes = 64;
  struct Place {
    T object;
    alignas(std::max_align_t) std::byte control[kControlBytes];
  };

  // The allocator of that control block: gives shared_ptr the memory beside the object.
  // Deallocation is shared_ptr's last act; then nothing refers to the object any more, not even a
  // weak_ptr.
  template <typename U>
  struct ControlBlock {
    using value_type = U;
    ControlBlock(Recycler& its_recycler, Place& its_place)
        : recycler(&its_recycler), place(&its_place) {}
    template <typename V>
    ControlBlock(const ControlBlock<V>& other)  // NOLINT: implicit, as allocators are converted
        : recycler(other.recycler), place(other.place) {}

    U* allocate(size_t) {
      static_assert(sizeof(U) <= kControlBytes && alignof(U) <= alignof(std::max_align_t));
      return reinterpret_cast<U*>(place->control);
    }
    void deallocate(U*, size_t) { recycler->give_back(place); }
    bool operator==(const ControlBlock&) const = default;

    Recycler* recycler;
    Place* place;
  };

  Place* find_place() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      places_.push_back(std::make_unique<Place>());
      free_.reserve(places_.size());  // so that giving back cannot fail
      return places_.back().get();
    }
    Place* place = free_.back();
    free_.pop_back();
    return place;
  }

  void give_back(Place* place) {
    std::lock_guard lock(mutex_);
    free_.push_back(place);
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Place>> places_;  // all, free or in use
  std::vector<Place*> free_;
};

}  // namespace perseus
