#include "base/task.h"

#include <array>
#include <bit>
#include <new>

namespace perseus {
namespace {

constexpr size_t kSmallestFrame = 128;
constexpr size_t kClasses = 8;  // 128 bytes to 16 KiB; larger frames go to the heap

struct FreeFrame {
  FreeFrame* next;
};

struct FramePool {
  std::array<FreeFrame*, kClasses> free{};
  ~FramePool() {
    for (FreeFrame* frame : free) {
      while (frame != nullptr) ::operator delete(std::exchange(frame, frame->next));
    }
  }
};

thread_local FramePool pool;

size_t class_of(size_t bytes) {
  return bytes <= kSmallestFrame ? 0 : std::bit_width((bytes - 1) / kSmallestFrame);
}

}  // namespace

void* allocate_frame(size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) return ::operator new(bytes);
  FreeFrame*& head = pool.free[size_class];
  if (head == nullptr) return ::operator new(kSmallestFrame << size_class);
  return std::exchange(head, head->next);
}

void free_frame(void* frame, size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) return ::operator delete(frame);
  auto* free_frame = static_cast<FreeFrame*>(frame);
  free_frame->next = pool.free[size_class];
  pool.free[size_class] = free_frame;
}

}  // namespace perseus
