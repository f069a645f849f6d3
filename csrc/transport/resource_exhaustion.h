// Tracks whether file descriptors or kernel memory are lacking to make or accept connections. A
// brief shortage does no harm, since both are retried. During a lasting one, the ranks that wait
// for such a connection would take the rank at its other end for dead; so this rank must report its
// shortage first. Loop thread.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace perseus {

class ResourceExhaustion {
 public:
  // Calls `on_lasting` once, with the errno, when a shortage has lasted for `patience`.
  ResourceExhaustion(Clock::duration patience, std::function<void(int error)> on_lasting)
      : patience_(patience), on_lasting_(std::move(on_lasting)) {}

  static bool is_exhaustion(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  }

  // An attempt has failed for lack of resources. Returns whether that begins a new shortage.
  bool failed(int error) {
    const Clock::time_point now = Clock::now();
    const bool is_new = now - last_ > kGap;
    if (is_new) since_ = now;
    last_ = now;
    if (now - since_ >= patience_ && on_lasting_) std::exchange(on_lasting_, nullptr)(error);
    return is_new;
  }
  // An attempt has succeeded, which ends the shortage.
  void succeeded() { last_ = {}; }

 private:
  // A failure after this much time without one begins a new shortage: retries come sooner.
  static constexpr std::chrono::seconds kGap{1};

  const Clock::duration patience_;
  std::function<void(int error)> on_lasting_;
  Clock::time_point since_, last_;
};

}  // namespace perseus
