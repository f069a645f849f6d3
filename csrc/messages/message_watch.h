// Reports sends and receives that wait long for the other rank, and ends the job if one waits for
// as long as is allowed. Engine thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/alarm.h"
#include "messages/messenger.h"
#include "observe/counters.h"

namespace perseus {

class MessageWatchHost {
 public:
  // A message has waited for as long as is allowed.
  virtual void end_stalled_message(const std::string& why) = 0;

 protected:
  ~MessageWatchHost() = default;
};

class MessageWatch {
 public:
  // report_after: how long something waits before it is reported, and then between reports.
  // limit: how long it may wait. 0: for ever.
  MessageWatch(EventLoop& loop, std::chrono::seconds report_after, std::chrono::seconds limit,
               int rank, const Messenger& messenger, Counters& counters, MessageWatchHost& host)
      : report_after_(report_after),
        limit_(limit),
        rank_(rank),
        messenger_(messenger),
        counters_(counters),
        host_(host),
        alarm_(loop) {}

  // Call when something has been submitted.
  void watch() {
    if (!alarm_.is_set()) arm();
  }

 private:
  void arm();
  void check();
  // "rank 3 waits for tag 7 from rank 1, which last sent tag 6 (34 s)"
  std::string describe(const Operation& operation, std::chrono::seconds waited) const;

  const std::chrono::seconds report_after_, limit_;
  const int rank_;
  const Messenger& messenger_;
  Counters& counters_;
  MessageWatchHost& host_;
  Alarm alarm_;
  Clock::time_point reported_at_;
};

}  // namespace perseus
