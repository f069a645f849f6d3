#include "base/file_descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace perseus {
namespace {

// One bit for each descriptor that this process owns. It is plain memory because only
// async-signal-safe code may run between fork and exec. Descriptors beyond the table are inherited.
constexpr int kTracked = 1 << 20;
std::atomic<uint64_t> owned[kTracked / 64];

uint64_t bit_of(int fd) { return uint64_t{1} << (fd % 64); }

void close_in_child() {
  for (int word = 0; word < kTracked / 64; ++word) {
    const uint64_t bits = owned[word].exchange(0, std::memory_order_relaxed);
    for (int bit = 0; bits >> bit != 0 && bit < 64; ++bit) {
      if ((bits >> bit & 1) != 0) ::close(word * 64 + bit);
    }
  }
}

void track(int fd) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, close_in_child);
  if (fd < kTracked) owned[fd / 64].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

// Returns false if the descriptor has been closed already because this is a forked child. Its
// number may by now belong to another file.
bool untrack(int fd) {
  if (fd >= kTracked) return true;
  const uint64_t before = owned[fd / 64].fetch_and(~bit_of(fd), std::memory_order_relaxed);
  return (before & bit_of(fd)) != 0;
}

}  // namespace

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  if (fd >= 0) track(fd);
}

void FileDescriptor::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && untrack(fd)) ::close(fd);
}

}  // namespace perseus
