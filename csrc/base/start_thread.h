// Threads where there may be no room for one: a limit on processes, or no memory for a stack.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace perseus {

// `what`: "the engine", for the error.
template <typename Body>
Status start_thread(std::thread& thread, const char* what, Body&& body) {
  try {
    thread = std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return Status::out_of_memory(std::string("no thread for ") + what +
                                 " could be started: " + error.what() +
                                 "; raise the limit on processes (ulimit -u, or pids.max of its "
                                 "cgroup) or on memory");
  }
  return {};
}

}  // namespace perseus
