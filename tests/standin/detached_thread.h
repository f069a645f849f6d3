// Threads that nobody joins, as those within a driver.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace perseus::standin {

// The program's signals are for its own threads.
template <typename Body>
void start_detached(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace perseus::standin
