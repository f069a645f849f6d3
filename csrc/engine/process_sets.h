// The process sets that this rank knows: how they come and go, and what other ranks say of them.
//
// Two kinds of sets come and go. Those that are added and removed are agreed on by the world, at
// the same place in the order of operations on every rank. Those that are opened and closed have
// ids from ProcessSet::kFirstOpened on that their members have chosen, and are known to these
// alone.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/wiring.h"
#include "state/control.h"
#include "state/process_set.h"

namespace perseus {

class ProcessSets {
 public:
  explicit ProcessSets(const Wiring& wiring);

  // ---- Any thread.

  // The ranks of a set, ascending, as of the last agreement; kInvalidArgument if there is no such
  // set.
  Result<SharedRanks> ranks(int32_t set) const;
  // The ids of all sets, ascending.
  std::vector<int32_t> ids() const;

  // ---- Loop thread, or before the loop runs.

  // Makes the set of all ranks.
  void open_world();
  const ProcessSet& world() const { return *sets_.at(ProcessSet::kWorld); }
  // Null if there is no such set.
  ProcessSetPtr find(int32_t id) const;
  const std::map<int32_t, ProcessSetPtr>& all() const { return sets_; }
  // Why nothing is done in a set that has been closed or removed.
  static Status set_is_gone(int32_t id);

  // The world has agreed to add or remove a set. `operation`: this rank's part, or null.
  Status add_or_remove(const Agreement::Ready& ready, Operation* operation);
  // The same of a set that only its members know of, by this rank alone; completes the operation.
  // What closes a set is done when the round that was under way in it has ended.
  void open_or_close(const OperationPtr& operation);
  // The set agrees on nothing more.
  void on_exhausted(const ProcessSet& set);

  // A message about one set: kBallot, kRoundDemand or kClosed.
  void on_control(int from, std::span<const std::byte> message);
  // A rank takes part in no round after those that it names.
  void on_leaving(const Leaving& leaving);
  void tell_neighbours(const ProcessSet& set, std::span<const std::byte> message);

  // Neighbours that this rank waits for, in any set, and that have not left.
  std::set<int> awaited_peers() const;
  // Returns whether something is under way here that the peer takes part in.
  bool awaits(int peer) const;

  // Ends what is pending in the set; nothing more is accepted there.
  void fail_pending(ProcessSet& set, const Status& why);
  // Ends all that is pending in any set, or waits for its turn.
  void fail_all(const Status& why);
  // Tells the other ranks the last rounds that this one takes part in, and ends what is pending.
  void leave(const std::string& why, const Status& told_here);

 private:
  using Message = std::vector<std::byte>;

  void open(int32_t id, std::vector<int> ranks);
  void close(int32_t id);
  Status open_by_members(const Operation& operation);
  void begin_closing(const OperationPtr& operation);
  void finish_closing(int32_t id);
  void fail_closing(const Status& why);

  void on_ballot(ProcessSet& set, int from, ByteReader reader, std::span<const std::byte> message);
  void on_round_demand(ProcessSet& set, int from, uint64_t round);
  void on_closed(ProcessSet& set, const Closed& closed);
  // Keeps a message about a set that is not here: others may have heard of the set sooner.
  void keep_early(int32_t set, int from, std::span<const std::byte> message);

  void apply_leaving(ProcessSet& set, const Leaving& leaving);
  // Leaves of the set what can go on without the rank: no round after the last that it takes part
  // in.
  void go_without(ProcessSet& set, int rank);

  const Wiring with_;
  const int rank_;

  mutable std::mutex ranks_mutex_;
  std::map<int32_t, SharedRanks> ranks_;  // as of the last agreement

  std::map<int32_t, ProcessSetPtr> sets_;
  std::set<int32_t> closed_;                 // of those that had been opened
  std::map<int32_t, OperationPtr> closing_;  // what closes them
  int32_t next_id_ = ProcessSet::kWorld;     // of those that are added
  std::map<int32_t, std::vector<std::pair<int, Message>>> early_messages_;
};

}  // namespace perseus
