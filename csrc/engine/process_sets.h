// The process sets that this rank knows. Makes and ends them, and handles messages about them.
//
// There are two kinds of sets besides the world. A set is added and removed by an agreement of the
// world, at the same place in the order of operations on every rank. Or it is opened and closed by
// its members, which alone know it; they choose its id, from ProcessSet::kFirstOpened on.
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

  // ---- Engine thread, or before the loop runs.

  // Makes the set of all ranks.
  void open_world();
  const ProcessSet& world() const { return *sets_.at(ProcessSet::kWorld); }
  // Null if there is no such set.
  ProcessSetPtr find(int32_t id) const;
  const std::map<int32_t, ProcessSetPtr>& all() const { return sets_; }
  // Returns whether this rank has had the set, and has it no more.
  bool has_closed(int32_t id) const;
  // Returns the error of operations in a set that has been closed or removed.
  static Status set_is_gone(int32_t id);

  // Adds or removes a set, as the world has agreed. `operation`: this rank's part, or null.
  Status add_or_remove(const Agreement::Ready& ready, Operation* operation);
  // Opens or closes a set that only its members know, on this rank alone, and completes the
  // operation. It does not matter which other ranks have left. An operation that closes a set is
  // complete when the round that was under way in the set has ended, or the world has.
  void open_or_close(const OperationPtr& operation);
  // Call when the set can agree on nothing more.
  void on_exhausted(const ProcessSet& set);

  // Handles a message about one set: kBallot, kRoundDemand or kClosed.
  void on_control(int from, std::span<const std::byte> message);
  // Handles a rank's message that it takes part in no round after those that the message names.
  void on_leaving(const Leaving& leaving);
  void tell_neighbours(const ProcessSet& set, std::span<const std::byte> message);

  // Returns the neighbours that this rank waits for, in any set, and that have not left.
  std::set<int> awaited_peers() const;
  // Returns the operation that was agreed on and is not done, whose submission is longest ago, or
  // null.
  const Operation* longest_under_way() const;
  // Returns whether something is under way here that the peer takes part in.
  bool awaits(int peer) const;

  // Ends the set's pending operations with `why`. The set accepts nothing more.
  void fail_pending(ProcessSet& set, const Status& why);
  // Ends all operations that are pending in any set, or that wait for their turn.
  void fail_all(const Status& why);
  // Tells the other ranks the last rounds that this one takes part in, and ends all pending
  // operations with `told_here`.
  void leave(const std::string& why, const Status& told_here);

 private:
  using Message = std::vector<std::byte>;

  void open(int32_t id, std::vector<int> ranks);
  void close(int32_t id);
  Status open_by_members(const Operation& operation);
  void begin_closing(const OperationPtr& operation);
  void finish_closing(int32_t id);
  // Completes the operations that close sets: the sets end with the world.
  void end_closing();

  void on_ballot(ProcessSet& set, int from, ByteReader reader, std::span<const std::byte> message);
  void on_round_demand(ProcessSet& set, int from, uint64_t round);
  void on_closed(ProcessSet& set, const Closed& closed);
  // Keeps a message about a set that is not here yet: others may have heard of the set sooner.
  void keep_early(int32_t set, int from, std::span<const std::byte> message);

  void apply_leaving(ProcessSet& set, const Leaving& leaving);
  // Ends what needs the rank, which takes part in no later round: fails what is pending in the set,
  // and breaks the world if something is running that the rank has no part in.
  void on_member_gone(ProcessSet& set, int rank);

  const Wiring wiring_;
  const int rank_;
  SharedRanks everyone_;  // of the world; never changes, so it is read without the lock

  mutable std::mutex ranks_mutex_;
  std::map<int32_t, SharedRanks> ranks_;  // as of the last agreement

  std::map<int32_t, ProcessSetPtr> sets_;
  std::map<int32_t, uint64_t> closed_;       // opened sets that have been closed; the last rounds
  std::map<int32_t, OperationPtr> closing_;  // the operations that close opened sets
  int32_t next_id_ = ProcessSet::kWorld;     // of the next set that is added
  std::map<int32_t, std::vector<std::pair<int, Message>>> early_messages_;
};

}  // namespace perseus
