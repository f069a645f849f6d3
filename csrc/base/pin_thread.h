// Lets the calling thread run on one processor only.
#pragma once

#include <pthread.h>
#include <sched.h>

namespace perseus {

// Returns false if there is no such processor, or the process may not run on it.
inline bool pin_thread_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

}  // namespace perseus
