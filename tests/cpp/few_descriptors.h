// This process may open few files, and can leave itself one.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/file_descriptor.h"

namespace perseus {

class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t number) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = number;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

  // Opens all but one, for as long as the result lives.
  [[nodiscard]] static std::vector<FileDescriptor> all_but_one() {
    std::vector<FileDescriptor> all;
    for (int fd = dup(0); fd >= 0; fd = dup(0)) all.emplace_back(fd);
    all.pop_back();
    return all;
  }

 private:
  rlimit before_{};
};

}  // namespace perseus
