#include "base/task.h"

#include <bit>
#include <new>

namespace perseus {
namespace {

constexpr size_t kSmallestFrame = 128;

size_t class_of(size_t bytes) {
  return bytes <= kSmallestFrame ? 0 : std::bit_width((bytes - 1) / kSmallestFrame);
}

thread_local FramePool* used_instead = nullptr;

}  // namespace

FramePool::~FramePool() {
  for (FreeFrame* frame : free_) {
    while (frame != nullptr) ::operator delete(std::exchange(frame, frame->next));
  }
}

void* FramePool::take(size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) return ::operator new(bytes);
  FreeFrame*& head = free_[size_class];
  if (head == nullptr) return ::operator new(kSmallestFrame << size_class);
  return std::exchange(head, head->next);
}

void FramePool::give_back(void* frame, size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) return ::operator delete(frame);
  auto* free_frame = static_cast<FreeFrame*>(frame);
  free_frame->next = free_[size_class];
  free_[size_class] = free_frame;
}

FramePool& FramePool::current() {
  if (used_instead != nullptr) return *used_instead;
  thread_local FramePool own;
  return own;
}

FramePool::Use::Use(FramePool& pool) : before_(std::exchange(used_instead, &pool)) {}
FramePool::Use::~Use() { used_instead = before_; }

}  // namespace perseus
