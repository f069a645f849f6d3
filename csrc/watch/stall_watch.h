// Finds operations that wait long for other ranks, asks those ranks, and reports which are missing.
// A rank asks only when something has waited longer than the report time, so a healthy job sends no
// questions. Engine thread.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/alarm.h"
#include "observe/counters.h"
#include "state/control.h"
#include "state/process_set.h"
#include "watch/last_submission.h"
#include "watch/stall_reporter.h"

namespace perseus {

struct Settings;

class StallWatchHost {
 public:
  virtual void send_to(int rank, std::span<const std::byte> message) = 0;
  // Returns the ranks for whose data this one waits, in operations that were agreed on.
  virtual std::vector<int> awaited_for_data() const = 0;

 protected:
  ~StallWatchHost() = default;
};

class StallWatch {
 public:
  StallWatch(EventLoop& loop, const Settings& settings, int rank, const LastSubmission& last,
             Counters& counters, StallWatchHost& host);

  // Call when an operation of the set has become pending. A timer checks later whether it is late.
  void watch(const ProcessSetPtr& set);
  // Call after each agreement. Logs which operations that were reported no longer wait.
  void note_agreement() {
    if (reporter_.has_reported()) look_for_cleared();
  }
  void answer(int from, const StallQuery& query, const ProcessSet* set);
  void on_answer(int from, const StallAnswer& answer);

 private:
  struct Suspect {
    StallReporter::TimePoint since;
    std::set<int> missing;
    std::map<int, std::string> last_submitted;  // of the missing ranks
  };

  void arm();
  bool has_pending() const;
  void check();
  void ask(const ProcessSet& set, const std::vector<const Operation*>& late);
  void report();
  void look_for_cleared();
  void drop_settled();
  // Returns the suspects. Their names are views of strings in `names`.
  std::vector<StallReporter::Waiting> waiting(std::vector<std::string>& names) const;
  void log_waiting_ranks(int asker, int32_t set, std::span<const StallQuery::Late> missing);

  const std::chrono::milliseconds report_after_;
  const bool enabled_;
  const int rank_;
  const LastSubmission& last_;
  Counters& counters_;
  StallWatchHost& host_;
  StallReporter reporter_;
  Alarm alarm_;
  StallReporter::TimePoint checked_at_;
  std::map<int32_t, std::weak_ptr<ProcessSet>> sets_;
  std::map<std::pair<int32_t, std::string>, Suspect> suspects_;  // by set and key
  StallReporter::TimePoint logged_waiting_at_;  // when it was logged that others wait for this rank
};

}  // namespace perseus
