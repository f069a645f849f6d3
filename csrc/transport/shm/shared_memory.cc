#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace perseus {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status no_shared_memory() {
  if (errno == ENOSYS) {
    return Status::unsupported(
        "shared memory is not available: this kernel has no memfd_create, which came with Linux "
        "3.17; set PERSEUS_TRANSPORT=tcp on all ranks");
  }
  return Status::out_of_memory(std::string("cannot create or map shared memory: ") +
                               std::strerror(errno));
}

std::byte* map_shared(int fd, size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  // A forked child, which has no engine, would else share it and could write to it.
  if (madvise(address, bytes, MADV_DONTFORK) == 0) return static_cast<std::byte*>(address);
  const int error = errno;
  munmap(address, bytes);
  errno = error;
  return nullptr;
}

}  // namespace

SharedMemory::~SharedMemory() {
  // In a forked child the descriptor is closed, and something else may be at this address.
  if (data_ != nullptr && fd_) munmap(data_, bytes_);
}

Result<SharedMemory> SharedMemory::create(size_t bytes) {
  FileDescriptor fd(memfd_create("perseus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return no_shared_memory();
  }
  return map(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::map(FileDescriptor fd, size_t bytes) {
  struct stat about{};
  if (fstat(fd.get(), &about) != 0 || about.st_size != static_cast<off_t>(bytes) ||
      (fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return Status::aborted("the shared memory that was offered cannot be mapped");
  }
  SharedMemory memory;
  memory.data_ = map_shared(fd.get(), bytes);
  if (memory.data_ == nullptr) return no_shared_memory();
  memory.bytes_ = bytes;
  memory.fd_ = std::move(fd);
  return memory;
}

}  // namespace perseus
