// Tracks whether this rank has run out of the file descriptors or the kernel memory that it needs
// to make or accept connections. If that passes soon it does no harm, since both are retried. If it
// lasts, the ranks that wait for such a connection would take this rank for dead, so it must report
// the exhaustion first. Only a whole handshake ends it: a socket may have been had at the cost of
// another rank's. Loop thread.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace perseus {

class ResourceExhaustion {
 public:
  // Calls `on_lasting` with the errno whenever exhaustion has lasted for another `patience`.
  ResourceExhaustion(Clock::duration patience, std::function<void(int error)> on_lasting)
      : patience_(patience), on_lasting_(std::move(on_lasting)) {}

  // An attempt has failed for lack of resources. Returns whether none has failed shortly before.
  bool failed(int error) {
    const Clock::time_point now = Clock::now();
    const bool is_new = now - last_ > kGap;
    if (is_new) since_ = now;
    last_ = now;
    if (now - since_ >= patience_) {
      since_ = now;
      on_lasting_(error);
    }
    return is_new;
  }
  // A connection with another rank has been made, which ends the exhaustion.
  void succeeded() { last_ = {}; }

 private:
  // A failure after this much time without one begins a new exhaustion: retries come sooner.
  static constexpr std::chrono::seconds kGap{1};

  const Clock::duration patience_;
  const std::function<void(int error)> on_lasting_;
  Clock::time_point since_, last_;
};

}  // namespace perseus
