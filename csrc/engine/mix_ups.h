// Brings to light a name that some ranks submit for one operation and others for another: as an
// allreduce here and a broadcast there, or in two process sets. Either would wait for ever for the
// ranks that wait in the other.
//
// An operation that has waited long, on a rank that has no other of that name, is overdue, and the
// ballots say so. A rank that hears of it, and waits as long for another operation of the name,
// refuses it; so it fails on all ranks that have submitted it, which then refuse the other. While
// something is overdue this rank attends the rounds of all its process sets. Engine thread.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/event_loop.h"
#include "engine/process_set.h"

namespace perseus {

class MixUpHost {
 public:
  virtual const std::map<int32_t, ProcessSetPtr>& process_sets_here() const = 0;
  virtual void advance(ProcessSet& set) = 0;

 protected:
  ~MixUpHost() = default;
};

class MixUps {
 public:
  // overdue_after: how long an operation must have waited.
  MixUps(EventLoop& loop, std::chrono::seconds overdue_after, MixUpHost& host);
  ~MixUps();

  // An operation has become pending.
  void watch() {
    if (!armed_) arm(overdue_after_);
  }
  // Call before what was agreed leaves the set's pending operations.
  void on_agreement(const ProcessSet& set, const Agreement& agreement);

 private:
  // An operation, by process set and key.
  using Place = std::pair<int32_t, std::string>;

  void arm(std::chrono::nanoseconds from_now);
  void check();
  // Marks what is overdue here; whether anything is pending at all.
  bool find_overdue();
  void refuse_heard();
  void refuse(const Place& theirs, const Place& ours);
  void forget(const Place& place);
  void advance_all();

  EventLoop& loop_;
  const std::chrono::seconds overdue_after_;
  MixUpHost& host_;
  bool armed_ = false;
  EventLoop::TimerId timer_ = 0;
  bool attends_ = false;
  std::set<Place> overdue_;                    // here
  std::set<Place> heard_;                      // overdue elsewhere, and not pending here
  std::set<std::pair<Place, Place>> refused_;  // for the sake of which of ours, and which
};

}  // namespace perseus
