// Owns a file descriptor, and closes it in forked children: a data loader's worker that held a copy
// of a connection would keep it open after its parent's death, and the peers would not notice.
// One thread at a time.
#pragma once

#include <utility>

namespace perseus {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

}  // namespace perseus
