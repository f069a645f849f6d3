// Owns a file descriptor, and closes it in forked children: a data loader's worker that held a copy
// of a connection would keep it open after its parent's death, and the peers would not notice. Nor
// can such a child disturb what its parent does with it. One thread at a time.
#pragma once

#include <cstdint>
#include <utility>

namespace perseus {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(forks_, other.forks_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  // -1 also in a forked child, where the number may by now belong to another file.
  int get() const { return forks_ == forks_before_this_process ? fd_ : -1; }
  explicit operator bool() const { return get() >= 0; }
  void reset();

 private:
  friend void close_in_child();
  // How many forks lie between this process and the first one that loaded the library. Changes only
  // where a forked child has a single thread.
  static uint32_t forks_before_this_process;

  int fd_ = -1;
  uint32_t forks_ = 0;
};

}  // namespace perseus
