// Threads that are never joined, like those of a driver.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <future>
#include <thread>
#include <utility>

namespace perseus::standin {

// Blocks signals, which are for the program's own threads. Returns when the thread runs, since
// LeakSanitizer inspects all threads when the program ends and fails on one that is being created.
template <typename Body>
void start_detached(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::promise<void> begun;
  std::future<void> has_begun = begun.get_future();
  std::thread([begun = std::move(begun), body = std::move(body)]() mutable {
    begun.set_value();
    body();
  }).detach();
  has_begun.wait();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace perseus::standin
