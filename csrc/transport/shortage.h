// The want of file descriptors, or of the kernel's memory, to make or take connections. For a
// moment it does no harm, since both are tried again. If it lasts, whoever waits for such a
// connection would take the rank at its other end for dead, so this rank must own up. Loop thread.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace perseus {

class Shortage {
 public:
  // `lasts`: called once, with errno's number, when it has not been over for `bearable`.
  Shortage(Clock::duration bearable, std::function<void(int error)> lasts)
      : bearable_(bearable), lasts_(std::move(lasts)) {}

  static bool is_one(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  }

  // An attempt has failed for it; whether it is the first.
  bool felt(int error) {
    const Clock::time_point now = Clock::now();
    const bool is_new = now - last_ > kGap;
    if (is_new) since_ = now;
    last_ = now;
    if (now - since_ >= bearable_ && lasts_) std::exchange(lasts_, nullptr)(error);
    return is_new;
  }
  // An attempt has succeeded.
  void over() { last_ = {}; }

 private:
  // Who lacks something tries again sooner.
  static constexpr std::chrono::seconds kGap{1};

  const Clock::duration bearable_;
  std::function<void(int error)> lasts_;
  Clock::time_point since_, last_;
};

}  // namespace perseus
