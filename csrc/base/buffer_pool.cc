#include "base/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <new>

namespace perseus {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = 64;

}  // namespace

Buffer::~Buffer() {
  if (data_ != nullptr) pool_->give_back(data_, capacity_);
}

BufferPool::~BufferPool() {
  for (auto& blocks : free_) {
    for (std::byte* block : blocks) ::operator delete(block, std::align_val_t(kAlignment));
  }
}

Buffer BufferPool::take(size_t bytes) {
  Buffer buffer;
  buffer.capacity_ = std::bit_ceil(std::max(bytes, kSmallest));
  auto& blocks = free_[std::countr_zero(buffer.capacity_)];
  if (!blocks.empty()) {
    buffer.data_ = blocks.back();
    blocks.pop_back();
  } else {
    buffer.data_ = static_cast<std::byte*>(
        ::operator new(buffer.capacity_, std::align_val_t(kAlignment), std::nothrow));
  }
  buffer.pool_ = this;
  return buffer;
}

void BufferPool::give_back(std::byte* data, size_t capacity) {
  free_[std::countr_zero(capacity)].push_back(data);
}

}  // namespace perseus
