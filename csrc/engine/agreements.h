// What becomes of operations until they are executed: a submission becomes pending in its process
// set, the set's negotiator agrees on it with the other ranks, and what was agreed goes to the
// executor. Loop thread.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "engine/submission_queue.h"
#include "engine/wiring.h"
#include "execution/executor.h"
#include "state/process_set.h"
#include "watch/name_conflicts.h"

namespace perseus {

class Agreements final : public SubmissionSink, public GpuLaunchesHost, public NameConflictHost {
 public:
  explicit Agreements(const Wiring& wiring) : with_(wiring) {}

  // What a negotiator of the set needs of its surroundings.
  std::unique_ptr<NegotiatorHost> host_of(ProcessSet& set);

  // SubmissionSink.
  void accept(std::span<const RefusedCall> refused,
              std::span<const OperationPtr> operations) override;

  // Begins or joins a round of the set if there is reason to. (NameConflictHost.)
  void advance(ProcessSet& set) override;
  // Has the members of the set end the round that is under way, or the next.
  void demand_round(ProcessSet& set);

  // GpuLaunchesHost and NameConflictHost.
  const ProcessSet& world() const override;
  const std::map<int32_t, ProcessSetPtr>& process_sets() const override;
  bool may_be_preceded(int32_t set, uint64_t time) override;
  void launch_ended(ProcessSet& set) override;

 private:
  class Host;

  void accept(const RefusedCall& refused);
  void accept(const OperationPtr& operation);
  // Why an operation that removes a set cannot be run: something is under way there.
  Status check_at_rest(const Operation& operation) const;

  void on_agreement(ProcessSet& set, const Agreement& agreement);
  void adopt_tuning(const Agreement& agreement);
  void fail_what_was_refused(ProcessSet& set, const Agreement& agreement);
  void complete_join(ProcessSet& set, int last_joined);
  // Takes what is ready out of the set's pending operations. What needs no execution is complete
  // hereby; the rest is in the batch.
  void fill(Batch& batch, ProcessSet& set, const Agreement& agreement);

  const Wiring with_;
  uint64_t time_ = 0;  // the latest of an agreement, in any set
};

}  // namespace perseus
