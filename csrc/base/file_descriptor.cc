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

}  // namespace

uint32_t FileDescriptor::forks_before_this_process = 0;

void close_in_child() {
  ++FileDescriptor::forks_before_this_process;
  for (int word = 0; word < kTracked / 64; ++word) {
    const uint64_t bits = owned[word].exchange(0, std::memory_order_relaxed);
    for (int bit = 0; bits >> bit != 0 && bit < 64; ++bit) {
      if ((bits >> bit & 1) != 0) ::close(word * 64 + bit);
    }
  }
}

FileDescriptor::FileDescriptor(int fd) : fd_(fd), forks_(forks_before_this_process) {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, close_in_child);
  if (fd >= 0 && fd < kTracked) owned[fd / 64].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void FileDescriptor::reset() {
  const int fd = get();
  fd_ = -1;
  if (fd < 0) return;
  if (fd < kTracked) owned[fd / 64].fetch_and(~bit_of(fd), std::memory_order_relaxed);
  ::close(fd);
}

}  // namespace perseus
