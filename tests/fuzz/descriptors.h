// Counts this process's file descriptors, and has them run out for the code under test. For
// programs of one source and thread.
#pragma once

#include <dirent.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "fuzz/input.h"

namespace perseus::fuzz {

inline size_t open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  MUST(folder != nullptr);
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

inline bool descriptors_are_scarce = false;

// As long as it exists, no socket can be opened. (A limit on open files would stop UBSan, too,
// which needs a descriptor to tell whether memory can be read.)
class Scarcity {
 public:
  Scarcity() { descriptors_are_scarce = true; }
  Scarcity(const Scarcity&) = delete;
  ~Scarcity() { descriptors_are_scarce = false; }
};

inline int open_socket(long call, long a, long b, long c, long d) {
  if (!descriptors_are_scarce) return static_cast<int>(syscall(call, a, b, c, d));
  errno = EMFILE;
  return -1;
}

}  // namespace perseus::fuzz

// In the place of the C library's.
extern "C" __attribute__((visibility("default"))) int accept4(int fd, sockaddr* address,
                                                              socklen_t* length, int flags) {
  return perseus::fuzz::open_socket(SYS_accept4, fd, reinterpret_cast<long>(address),
                                    reinterpret_cast<long>(length), flags);
}
extern "C" __attribute__((visibility("default"))) int socket(int family, int type,
                                                             int protocol) noexcept {
  return perseus::fuzz::open_socket(SYS_socket, family, type, protocol, 0);
}
