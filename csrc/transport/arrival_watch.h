// Finds out that data which the peer has sent does not arrive, because something on the network
// holds it back. The peer lives and answers, so nothing else would notice.
//
// While this rank waits for data of a link, it regularly asks the peer for a mark on each of the
// link's channels. A mark comes after all that was sent before on its channel. If it has come on
// channel 0, the peer has seen the question. If it is still missing on another channel, and nothing
// else has come there for PERSEUS_PEER_TIMEOUT, that channel is reported. If it is missing on
// channel 0, the peer is silent, which the engine finds out. While this rank waits for no data,
// nothing is asked. Loop thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/alarm.h"

namespace perseus {

class ArrivalWatchHost {
 public:
  // Returns whether a receive is unfinished that was posted before this turn.
  virtual bool awaits_data_since(uint32_t turn) const = 0;
  // Returns whether more may come on this channel.
  virtual bool is_open(int channel) const = 0;
  virtual uint64_t bytes_received(int channel) const = 0;
  // Asks the peer for marks, with the number requested().
  virtual void request_marks() = 0;
  virtual void on_held_back(int channel, std::chrono::milliseconds silent_for) = 0;

 protected:
  ~ArrivalWatchHost() = default;
};

class ArrivalWatch {
 public:
  // `silence`: how long a channel may be silent; 0 for ever.
  ArrivalWatch(EventLoop& loop, std::chrono::milliseconds silence, ArrivalWatchHost& host)
      : silence_(silence), host_(host), alarm_(loop) {}

  void add_channel(int channel) { channels_.push_back({channel}); }
  // A receive has been posted.
  void watch() {
    if (!alarm_.is_set() && !channels_.empty() && silence_.count() > 0) arm();
  }
  void stop() { alarm_.cancel(); }
  // Requests marks now, to see whether the peer answers. Returns the number of the request.
  uint64_t ask();
  // A mark has arrived that answers the request of this number.
  void marked(int channel, uint64_t number);

  // Counts up while data is awaited, several times during `silence`.
  uint32_t turn() const { return turn_; }
  // The number of the latest request.
  uint64_t requested() const { return requested_; }

 private:
  static constexpr int kTicks = 16;  // during `silence`

  struct Channel {
    int index;
    uint64_t marked = 0;  // the last request that was answered
    uint64_t bytes = 0;   // when it was last looked at
    Clock::time_point moved_at{};
  };

  void arm();
  void tick();
  bool is_unanswered(const Channel& channel) const {
    return channel.marked < requested_ && host_.is_open(channel.index);
  }
  void reset_clocks(Clock::time_point now);
  // Reports a channel that has been silent for too long; returns whether there is one.
  bool report_silent(Clock::time_point now, bool has_slept);

  const std::chrono::milliseconds silence_;
  ArrivalWatchHost& host_;
  Alarm alarm_;
  Clock::time_point ticked_;
  uint32_t turn_ = 0;
  uint64_t requested_ = 0;
  std::vector<Channel> channels_;
};

}  // namespace perseus
