// Messages of a collective, and arrays of them in the pool's memory.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "base/buffer_pool.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "transport/link.h"

namespace perseus {

// A Transfer that may turn out to be of no bytes. Such a one is not sent at all: both ends know the
// size. Awaiting a Message that was not begun gives success at once. Await each once.
class Message {
 public:
  bool await_ready() const noexcept { return !begun_ || transfer_.await_ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { transfer_.await_suspend(waiter); }
  Status await_resume() { return begun_ ? transfer_.await_resume() : Status::ok(); }

 private:
  friend class Wire;
  Transfer transfer_;
  bool begun_ = false;
};

// The group's links under the tags of one collective. `step` counts from the collective's first.
class Wire {
 public:
  Wire(const Group& group, const CollectiveOptions& options) : group_(group), options_(options) {}

  void send(Message& message, int to, uint32_t step, const void* data, uint64_t bytes) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[to]->send(message.transfer_, tag(step), data, bytes, options_.priority);
  }
  // As send, of bytes that are sent to others under the same `shared`.
  void send(Message& message, int to, uint32_t step, const void* data, uint64_t bytes,
            SharedPayload& shared) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[to]->send(message.transfer_, tag(step), data, bytes, options_.priority, &shared);
  }
  void receive(Message& message, int from, uint32_t step, void* target, uint64_t bytes,
               const Reduction* reduction = nullptr) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[from]->receive(message.transfer_, tag(step), target, bytes, reduction,
                                options_.streaming);
  }

 private:
  Tag tag(uint32_t step) const {
    return {options_.operation, options_.shard, options_.first_step + step};
  }

  const Group& group_;
  const CollectiveOptions& options_;
};

inline void keep_first_error(Status& first, const Status& next) {
  if (first.is_ok()) first = next;
}

inline Status out_of_scratch(size_t bytes) {
  return Status::out_of_memory("no memory for " + std::to_string(bytes) +
                               " bytes of scratch in a collective");
}

// Up to `capacity` objects in a block of the pool; false when there was no memory.
template <typename T>
class ScratchArray {
 public:
  ScratchArray(BufferPool& buffers, size_t capacity)
      : buffer_(buffers.take(capacity * sizeof(T))) {}
  // Holds `size` copies of `value`.
  ScratchArray(BufferPool& buffers, size_t size, const T& value) : ScratchArray(buffers, size) {
    while (buffer_ && size_ < size) emplace(value);
  }
  ScratchArray(const ScratchArray&) = delete;
  ~ScratchArray() {
    for (T& object : span()) object.~T();
  }

  explicit operator bool() const { return static_cast<bool>(buffer_); }
  template <typename... Arguments>
  T& emplace(Arguments&&... arguments) {
    return *new (data() + size_++) T(std::forward<Arguments>(arguments)...);
  }
  T& operator[](size_t i) { return data()[i]; }
  T* data() { return reinterpret_cast<T*>(buffer_.data()); }
  size_t size() const { return size_; }
  std::span<T> span() { return {data(), size_}; }

 private:
  Buffer buffer_;
  size_t size_ = 0;
};

}  // namespace perseus
