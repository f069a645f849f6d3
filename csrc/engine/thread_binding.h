// Keeps track of what ties the engine's work to the engine's own thread. While anything does, no
// waiting thread may run the loop in its place. Any thread.
#pragma once

#include <atomic>

namespace perseus {

class ThreadBinding {
 public:
  // From now on all work needs the engine's own thread: MPI and CUDA want one thread.
  void bind_all() { all_.store(true, std::memory_order_relaxed); }
  // An operation whose callback must run on the engine's own thread is under way, or is done.
  void add_operation() { operations_.fetch_add(1, std::memory_order_relaxed); }
  void remove_operation() { operations_.fetch_sub(1, std::memory_order_relaxed); }

  bool is_bound() const {
    return operations_.load(std::memory_order_relaxed) != 0 || all_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<int> operations_{0};
  std::atomic<bool> all_{false};
};

}  // namespace perseus
