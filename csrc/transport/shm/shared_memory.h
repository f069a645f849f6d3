// Memory without a name that two processes share. It is passed on as a file descriptor, and freed
// with the last process that has it. Processes that these two fork do not have it.
#pragma once

#include <cstddef>
#include <utility>

#include "base/file_descriptor.h"
#include "base/status.h"

namespace perseus {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_),
        fd_(std::move(other.fd_)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SharedMemory();

  // The memory is zeroed.
  static Result<SharedMemory> create(size_t bytes);
  // Maps memory that another process has created. An error if its size differs, or if it could be
  // made smaller later.
  static Result<SharedMemory> map(FileDescriptor fd, size_t bytes);

  std::byte* data() const { return data_; }
  int fd() const { return fd_.get(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  FileDescriptor fd_;
};

}  // namespace perseus
