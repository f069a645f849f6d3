// Ends a stall that has lasted for as long as is allowed: asks all ranks what they wait for, and
// has the ranks given up that take no part; see stall_verdict.h. Unlike the reports of StallWatch,
// this also covers ranks that have joined, once the others have agreed on nothing for as long.
//
// A rank asks only when something has waited that long, so a healthy job sends no questions. Engine
// thread.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/alarm.h"
#include "state/control.h"
#include "state/process_set.h"
#include "watch/last_submission.h"
#include "watch/stall_verdict.h"

namespace perseus {

class StallJudgeHost {
 public:
  virtual void send_to(int rank, std::span<const std::byte> message) = 0;
  virtual const std::map<int32_t, ProcessSetPtr>& process_sets() const = 0;
  // Returns whether the rank has left the world, so that it answers no questions.
  virtual bool has_left(int rank) const = 0;
  virtual std::string name_of(int rank) const = 0;
  // Returns the ranks for whose data this one waits, in operations that were agreed on.
  virtual std::vector<int> awaited_for_data() const = 0;
  // Returns the operation that was agreed on and is not done, whose submission is longest ago, or
  // null.
  virtual const Operation* longest_under_way() const = 0;
  virtual void end_stalled(const StallVerdict& verdict) = 0;

 protected:
  ~StallJudgeHost() = default;
};

class StallJudge {
 public:
  // limit: how long an operation may wait; 0: for ever. patience: how long to wait for answers; a
  // rank whose engine gives none for that long takes no part either.
  StallJudge(EventLoop& loop, std::chrono::milliseconds limit, std::chrono::milliseconds patience,
             int rank, int size, const LastSubmission& last, StallJudgeHost& host);

  // Call when an operation has become pending.
  void watch() {
    if (limit_.count() > 0 && !alarm_.is_set()) check_at(Clock::now() + limit_);
  }
  // Call after each agreement in which this rank took part because it has joined.
  void note_agreement_without_submission() { agreed_at_ = Clock::now(); }

  void answer(int from, const WaitQuery& query);
  void on_answer(int from, WaitAnswer answer);

 private:
  struct Wait {
    ProcessSetPtr set;
    std::string key;
    Clock::time_point since;
  };

  void check_at(Clock::time_point when) {
    alarm_.set(when, [this] { check(); });
  }
  void check();
  std::optional<Wait> longest_wait() const;
  bool has_joined() const;
  // This rank's words on itself, but for the operation that it is asked about.
  WaitAnswer own_answer() const;
  // The same if an operation under way has waited for longer than any that is pending.
  void wait_for_data(const Operation& under_way, WaitAnswer& answer) const;
  void ask(const Wait& wait, std::chrono::milliseconds limit);
  void conclude();

  const std::chrono::milliseconds limit_;
  const std::chrono::milliseconds patience_;
  const int rank_;
  const int size_;
  const LastSubmission& last_;
  StallJudgeHost& host_;
  Alarm alarm_;                  // when to look whether anything waits too long
  Alarm out_of_patience_;        // set while this rank waits for answers
  Clock::time_point agreed_at_;  // the last agreement in a set that this rank has joined
  uint32_t question_ = 0;
  int unanswered_ = 0;
  std::string asked_key_;
  int32_t asked_set_ = 0;
  Stall stall_;
};

}  // namespace perseus
