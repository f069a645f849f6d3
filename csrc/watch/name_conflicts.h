// Finds a name that some ranks submit for one operation and others for another: as an allreduce
// here and a broadcast there, or in two process sets. Each of the two would wait for ever for the
// ranks that wait in the other.
//
// A rank's ballots mark an operation as overdue when it has waited long and the rank has no other
// pending operation of that name. Another rank may then have waited as long for a second operation
// of the name, which needs one of the ranks that wait for the first. That rank refuses the first
// operation, so that it fails on all ranks that have submitted it. Those ranks then refuse the
// second. If no rank waits for a second operation, some rank may just be slow, and nothing is
// refused.
//
// A call that has failed here because this rank is not in the process set (a non-member call) may
// have been meant for a set that this rank is in, and whose other ranks now wait. It refuses the
// first operation of its name that becomes overdue elsewhere, unless this rank submits one of that
// name meanwhile.
//
// While something is overdue here, or there is a non-member call, this rank takes part in the
// rounds of all its process sets. Engine thread.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/alarm.h"
#include "state/process_set.h"

namespace perseus {

class NameConflictHost {
 public:
  virtual const std::map<int32_t, ProcessSetPtr>& process_sets() const = 0;
  virtual void advance(ProcessSet& set) = 0;

 protected:
  ~NameConflictHost() = default;
};

class NameConflicts {
 public:
  // overdue_after: how long an operation must have waited to be overdue.
  NameConflicts(EventLoop& loop, std::chrono::seconds overdue_after, NameConflictHost& host);

  // Call when an operation has become pending.
  void watch(const Operation& operation) {
    if (!alarm_.is_set()) arm(overdue_after_);
    if (!non_member_calls_.empty()) non_member_calls_.erase(std::string(users_name(operation.key)));
  }
  // Call when a call has failed because this rank does not belong to its process set.
  void add_non_member_call(const std::string& key, const std::string& reason);
  // Call before the operations that were agreed on are removed from the set's pending ones.
  void on_agreement(const ProcessSet& set, const Agreement& agreement);

 private:
  // Process set and key.
  using OperationId = std::pair<int32_t, std::string>;

  void arm(std::chrono::nanoseconds from_now);
  void check();
  // Marks what is overdue here. Returns whether anything is pending at all.
  bool find_overdue();
  void refuse_overdue_elsewhere();
  bool waits_for_one_of(const OperationId& ours, const std::vector<int32_t>& ranks) const;
  void refuse_for(const OperationId& theirs, const OperationId& ours);
  bool refuse(const OperationId& theirs, Refusal refusal);
  void forget(const OperationId& id);
  void advance_all();

  EventLoop& loop_;
  const std::chrono::seconds overdue_after_;
  NameConflictHost& host_;
  Alarm alarm_;
  bool takes_part_always_ = false;
  std::set<OperationId> overdue_;  // operations that are overdue here
  // Operations that are overdue on these ranks, and not pending here.
  std::map<OperationId, std::vector<int32_t>> overdue_elsewhere_;
  struct NonMemberCall {
    Clock::time_point until;
    std::string reason;
  };
  std::map<std::string, NonMemberCall> non_member_calls_;  // by the user's name
  // Each refusal: the operation here that was the reason, and the operation that was refused.
  std::set<std::pair<OperationId, OperationId>> refused_;
};

}  // namespace perseus
