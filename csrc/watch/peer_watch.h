// Finds a rank that is there and says nothing: its process is stopped, or its engine hangs. Its
// connections stand, and the kernel acknowledges for it, so nobody else would find out. A rank that
// only computes is not such: its engine answers.
//
// While something is outstanding here, the neighbours in the process sets concerned are asked now
// and then. Who has not said anything for PERSEUS_PEER_TIMEOUT is given up. With nothing
// outstanding nothing is sent. Engine thread.
#pragma once

#include <map>
#include <set>
#include <span>

#include "base/alarm.h"

namespace perseus {

class PeerWatchHost {
 public:
  // Ranks that this one waits for, or would hear nothing of others without; empty if it waits for
  // nothing.
  virtual std::set<int> awaited_peers() const = 0;
  virtual void ping(int rank) = 0;
  // It has said nothing for so long, though it was asked.
  virtual void on_silent_peer(int rank) = 0;

 protected:
  ~PeerWatchHost() = default;
};

class PeerWatch {
 public:
  PeerWatch(EventLoop& loop, std::chrono::milliseconds silence, PeerWatchHost& host)
      : silence_(silence), host_(host), alarm_(loop) {}

  // Something is outstanding.
  void watch() {
    if (!alarm_.is_set()) arm(Clock::now() + silence_ / kTicks);
  }
  // A control message has come.
  void heard(int from) {
    if (alarm_.is_set()) heard_[from] = Clock::now();
  }

 private:
  // How often neighbours are asked, in parts of the time-out.
  static constexpr int kTicks = 16;

  void arm(Clock::time_point when);
  void tick();

  const std::chrono::milliseconds silence_;
  PeerWatchHost& host_;
  Alarm alarm_;
  Clock::time_point ticked_;
  // When each was last heard, or first awaited.
  std::map<int, Clock::time_point> heard_;
};

}  // namespace perseus
