// Takes operations from submission to execution: a submission becomes pending in its process set,
// the set's negotiator agrees on it with the other ranks, and the executor gets what was agreed. A
// message between two ranks needs no agreement; the messenger gets it at once.
// Engine thread.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/submission_queue.h"
#include "engine/wiring.h"
#include "execution/executor.h"
#include "state/process_set.h"
#include "watch/name_conflicts.h"

namespace perseus {

class Agreements final : public SubmissionSink, public GpuLaunchesHost, public NameConflictHost {
 public:
  explicit Agreements(const Wiring& wiring) : wiring_(wiring) {}

  // Makes the host of the set's negotiator, which ties it to the engine.
  std::unique_ptr<NegotiatorHost> host_of(ProcessSet& set);

  // SubmissionSink.
  void accept(std::span<const RefusedCall> refused, std::span<OperationPtr> operations) override;

  // Begins or joins a round of the set if there is reason to. (NameConflictHost.)
  void advance(ProcessSet& set) override;
  // Asks the members of the set to end the round that is under way, or else the next one.
  void request_round(ProcessSet& set);

  // Has the links use the values that the tuner uses now.
  void apply_tuning();

  // GpuLaunchesHost and NameConflictHost.
  const ProcessSet& world() const override;
  const std::map<int32_t, ProcessSetPtr>& process_sets() const override;
  bool may_be_preceded(int32_t set, uint64_t time) override;
  void launch_ended(ProcessSet& set) override;

 private:
  class Host;

  void accept(const RefusedCall& refused);
  // `set`: the operation's, or null if there is none.
  void accept(const ProcessSetPtr& set, OperationPtr operation);
  void accept_message(const ProcessSet& set, const OperationPtr& operation);
  // Returns an error if the operation removes a set in which something is still under way.
  Status check_at_rest(const Operation& operation) const;

  void on_agreement(ProcessSet& set, const Agreement& agreement);
  void adopt_tuning(const Agreement& agreement);
  void fail_what_was_refused(ProcessSet& set, const Agreement& agreement);
  void complete_join(ProcessSet& set, const Agreement& agreement);
  // Takes the ready operations out of the set's pending ones. Completes those that need no
  // execution, and puts the others into the batch.
  void fill(Batch& batch, ProcessSet& set, const Agreement& agreement);

  const Wiring wiring_;
  std::vector<int32_t> sets_with_news_;  // of the operations that are being accepted
  uint64_t time_ = 0;                    // the latest Agreement::time, in any set
};

}  // namespace perseus
