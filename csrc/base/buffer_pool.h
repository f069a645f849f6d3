// Scratch memory for the engine's steady path. Blocks have power-of-two sizes and are reused, so
// that no training step after the first allocates. Aligned to 64 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace perseus {

class BufferPool;

// Owns one block, and returns it to the pool on destruction.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        capacity_(other.capacity_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

// One thread at a time (the loop's).
class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  ~BufferPool();

  // At least `bytes` bytes of uninitialised memory, or an empty Buffer if memory has run out.
  Buffer take(size_t bytes);

 private:
  friend class Buffer;
  void give_back(std::byte* data, size_t capacity);
  std::array<std::vector<std::byte*>, 48> free_;
};

}  // namespace perseus
