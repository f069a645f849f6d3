// Finds a rank that has gone silent, because its process is stopped, its engine hangs or its host
// has vanished. If the process is stopped, its connections stay open and its kernel acknowledges
// what is sent, so nothing else would notice. A rank that is busy computing is not silent, since
// its engine answers.
//
// While this rank waits for anything, it regularly pings its neighbours in the process sets that it
// waits for, and the ranks whose data it waits for. One of them that has sent no control message
// for PERSEUS_PEER_TIMEOUT is reported to the host. While this rank waits for nothing, it sends
// nothing. Engine thread.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <span>

#include "base/alarm.h"

namespace perseus {

class PeerWatchHost {
 public:
  // The ranks that this one waits for, or through which it hears of others. Empty if it waits for
  // nothing.
  virtual std::set<int> awaited_peers() const = 0;
  virtual void ping(int rank) = 0;
  // The rank has sent nothing for `silent_for`, at least the time-out, though it was pinged.
  virtual void on_silent_peer(int rank, std::chrono::milliseconds silent_for) = 0;

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
  // A control message has arrived.
  void heard(int from) {
    if (alarm_.is_set()) heard_[from] = Clock::now();
  }

 private:
  // How many times they are pinged during one time-out.
  static constexpr int kTicks = 16;

  void arm(Clock::time_point when);
  void tick();

  const std::chrono::milliseconds silence_;
  PeerWatchHost& host_;
  Alarm alarm_;
  Clock::time_point ticked_;
  // When each of them was last heard from, or else first awaited.
  std::map<int, Clock::time_point> heard_;
};

}  // namespace perseus
