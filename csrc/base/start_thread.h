// Starts a thread, or says why none can be started: a limit on processes, or no memory for a stack.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/processors.h"
#include "base/status.h"

namespace perseus {

// `what` names the thread's purpose in the error: "the engine". The thread may run where the main
// thread may, although the engine's thread, which may have started it, is bound: see
// PERSEUS_THREAD_AFFINITY.
template <typename Body>
Status start_thread(std::thread& thread, const char* what, Body&& body) {
  try {
    thread = std::thread([body = std::forward<Body>(body)]() mutable {
      bind_thread_to(Processors::of_this_process());
      body();
    });
  } catch (const std::system_error& error) {
    return Status::out_of_memory(std::string("cannot start a thread for ") + what + ": " +
                                 error.what() +
                                 "; raise the limit on processes (ulimit -u, or pids.max of its "
                                 "cgroup) or on memory");
  }
  return {};
}

}  // namespace perseus
