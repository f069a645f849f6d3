// Scratch of a collective in the pool's memory.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "base/buffer_pool.h"
#include "base/status.h"

namespace perseus {

inline Status out_of_scratch(size_t bytes) {
  return Status::out_of_memory("no memory for " + std::to_string(bytes) +
                               " bytes of scratch in a collective");
}

// Up to `capacity` objects in a block of the pool. Converts to false if there was no memory.
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
