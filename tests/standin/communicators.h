// The communicators that have not been destroyed or aborted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator.h"

namespace perseus::standin {

// Any thread.
class Communicators {
 public:
  static Communicators& get() {
    static Communicators& communicators = *new Communicators;
    return communicators;
  }

  NcclHandle add(std::shared_ptr<Communicator> communicator) {
    std::lock_guard lock(mutex_);
    const auto handle = reinterpret_cast<NcclHandle>((uintptr_t{3} << 32) + 16 * ++made_);
    all_[handle] = std::move(communicator);
    return handle;
  }
  // Null if there is none with that handle.
  std::shared_ptr<Communicator> find(NcclHandle comm) {
    std::lock_guard lock(mutex_);
    const auto found = all_.find(comm);
    return found == all_.end() ? nullptr : found->second;
  }
  std::vector<std::shared_ptr<Communicator>> all() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Communicator>> found;
    for (const auto& [handle, communicator] : all_) found.push_back(communicator);
    return found;
  }
  void remove(NcclHandle comm) {
    std::lock_guard lock(mutex_);
    all_.erase(comm);
  }

 private:
  std::mutex mutex_;
  uintptr_t made_ = 0;
  std::map<NcclHandle, std::shared_ptr<Communicator>> all_;
};

}  // namespace perseus::standin
