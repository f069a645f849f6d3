#include "engine/agreements.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/agreed_checks.h"
#include "engine/departures.h"
#include "engine/operation_tracker.h"
#include "engine/process_sets.h"
#include "engine/termination.h"
#include "engine/watches.h"
#include "execution/trace.h"
#include "messages/message_watch.h"
#include "messages/messenger.h"
#include "state/announcements.h"
#include "state/control.h"

namespace perseus {

// Ties a set's negotiator to the engine.
class Agreements::Host final : public NegotiatorHost {
 public:
  Host(Agreements& owner, ProcessSet& set) : owner_(owner), set_(set) {}

  void send(int to_index, std::span<const std::byte> message) override {
    owner_.wiring_.counters.agreement_messages_sent.add();
    owner_.wiring_.counters.agreement_bytes_sent.add(message.size());
    owner_.wiring_.mesh.send_control(set_.ranks[to_index], message);
  }
  void agreed(const Agreement& agreement) override { owner_.on_agreement(set_, agreement); }
  uint64_t time() const override { return owner_.time_; }
  uint64_t announcement() const override {
    return set_.id == ProcessSet::kWorld ? owner_.wiring_.announcements.own() : 0;
  }
  Attachment attachment(const std::string& key) override {
    const auto found = set_.pending.find(key);
    if (found == set_.pending.end()) return {};
    return owner_.wiring_.executor.attachment(*found->second, set_.group.size);
  }

 private:
  Agreements& owner_;
  ProcessSet& set_;
};

std::unique_ptr<NegotiatorHost> Agreements::host_of(ProcessSet& set) {
  return std::make_unique<Host>(*this, set);
}

const ProcessSet& Agreements::world() const { return wiring_.sets.world(); }

const std::map<int32_t, ProcessSetPtr>& Agreements::process_sets() const {
  return wiring_.sets.all();
}

// ---- Submission.

void Agreements::accept(std::span<const RefusedCall> refused, std::span<OperationPtr> operations) {
  for (const RefusedCall& call : refused) accept(call);
  ProcessSetPtr set;
  for (OperationPtr& operation : operations) {
    const int32_t id = operation->process_set;
    const bool needs_round = !is_message(operation->description.kind);
    if (needs_round && (sets_with_news_.empty() || sets_with_news_.back() != id)) {
      sets_with_news_.push_back(id);
    }
    if (operation->new_set >= 0) {
      wiring_.tracker.begin(*operation);
      wiring_.sets.open_or_close(operation);
      set = nullptr;
      continue;
    }
    if (set == nullptr || set->id != id) set = wiring_.sets.find(id);
    accept(set, std::move(operation));
  }
  // One round covers all the operations of a set that came together.
  for (const int32_t id : sets_with_news_) {
    if ((set = wiring_.sets.find(id)) != nullptr) advance(*set);
  }
  sets_with_news_.clear();
}

void Agreements::accept(const RefusedCall& refused) {
  const ProcessSetPtr set = wiring_.sets.find(refused.set);
  if (!wiring_.termination.reason().is_ok()) return;
  const bool is_member = set != nullptr && set->negotiator != nullptr;
  if (!is_member)
    return wiring_.watches.name_conflicts.add_non_member_call(refused.key, refused.reason);
  if (!set->broken.is_ok()) return;
  set->negotiator->refuse(refused.key, {refused.reason, -1, ""});
  advance(*set);
}

void Agreements::accept(const ProcessSetPtr& set, OperationPtr operation) {
  wiring_.tracker.begin(*operation);
  if (const Status why = wiring_.termination.reason(); !why.is_ok()) {
    return wiring_.tracker.complete(operation, why);
  }
  if (set == nullptr) {
    return wiring_.tracker.complete(operation, ProcessSets::set_is_gone(operation->process_set));
  }
  if (is_message(operation->description.kind)) return accept_message(*set, operation);
  if (!set->broken.is_ok()) return wiring_.tracker.complete(operation, set->broken);
  Status possible = check_at_rest(*operation);
  if (possible.is_ok()) possible = wiring_.executor.check_gpu(*set, *operation);
  if (!possible.is_ok()) {
    set->negotiator->refuse(operation->key, {possible.message(), -1, ""});
    return wiring_.tracker.complete(operation, std::move(possible));
  }

  Operation& pending = *operation;
  // The description lives as long as its operation.
  std::shared_ptr<const Description> description(operation, &pending.description);
  set->pending.insert(pending.key, std::move(operation));
  wiring_.watches.on_submission(set, pending);
  trace_negotiation(wiring_.timeline, pending);
  if (pending.description.kind == OperationKind::kJoin) {
    set->negotiator->join();
  } else {
    set->negotiator->submit(pending.key, std::move(description));
  }
}

// Two ranks may exchange messages in a set that a third has left.
void Agreements::accept_message(const ProcessSet& set, const OperationPtr& operation) {
  if (!set.broken.is_ok() && set.departed < 0) {
    return wiring_.tracker.complete(operation, set.broken);
  }
  wiring_.watches.last.note(*operation);
  trace_message(wiring_.timeline, *operation);
  wiring_.messenger.submit(operation);
  if (operation->done.is_set()) return;
  wiring_.message_watch.watch();
  wiring_.watches.peers.watch();
}

// Ranks learn of a removal and of what was agreed in the set at different moments. Operations under
// way there would fail on some ranks and run on others, which would wait for ever.
Status Agreements::check_at_rest(const Operation& operation) const {
  if (operation.description.kind != OperationKind::kRemoveProcessSet) return {};
  const int32_t id = operation.description.ranks.front();
  const ProcessSetPtr set = wiring_.sets.find(id);
  if (set == nullptr) return {};
  const Operation* under_way =
      set->pending.empty() ? wiring_.executor.find_running(id) : set->pending.begin()->second.get();
  if (under_way == nullptr) return {};
  return Status::invalid_argument("process set " + std::to_string(id) +
                                  " cannot be removed: " + title(under_way->key) +
                                  " is still under way in it; wait for it first");
}

// ---- Agreement.

void Agreements::advance(ProcessSet& set) {
  if (set.negotiator == nullptr) return;
  if (set.id == ProcessSet::kWorld) {
    const Tuner& tuner = wiring_.executor.tuner();
    if (const auto result = tuner.result()) set.negotiator->measured(tuner.trial(), *result);
  }
  const uint64_t described = set.negotiator->descriptions_sent();
  set.negotiator->advance();
  if (const Status& failure = set.negotiator->failure(); !failure.is_ok()) {
    return wiring_.termination.break_world(wiring_.termination.failed_here(failure));
  }
  wiring_.counters.descriptions_sent.add(set.negotiator->descriptions_sent() - described);
  if (!set.negotiator->is_exhausted()) return;
  if (!set.pending.empty()) wiring_.sets.fail_pending(set, set.broken);
  wiring_.sets.on_exhausted(set);
}

void Agreements::on_agreement(ProcessSet& set, const Agreement& agreement) {
  wiring_.counters.agreements.add();
  time_ = std::max(time_, agreement.time);
  // An operation that has ended with an error here must not succeed elsewhere without this rank's
  // part.
  if (!wiring_.termination.reason().is_ok()) return;
  Executor& executor = wiring_.executor;
  executor.hold_launches();
  if (set.id == ProcessSet::kWorld) adopt_tuning(agreement);
  if (wiring_.timeline.marks_cycles()) wiring_.timeline.instant({}, "CYCLE_START");
  wiring_.watches.name_conflicts.on_agreement(set, agreement);
  fail_what_was_refused(set, agreement);
  if (agreement.last_joined >= 0) complete_join(set, agreement);

  const std::shared_ptr<Batch> batch = executor.new_batch();
  fill(*batch, set, agreement);
  wiring_.watches.on_agreement(set);
  const bool is_beyond = agreement.round > set.negotiator->last_round();
  if (!batch->agreed.empty() && !is_beyond) {
    batch->set = set.shared_from_this();
    batch->round = agreement.round;
    batch->is_joined = !agreement.joined.empty();
    batch->take_sizes(agreement.sizes);
    executor.run(batch, agreement.inputs);
  }
  executor.settle_launches(set, agreement);
  // The batch has ended with an error here. It must not go on elsewhere without this rank's part,
  // unless all inputs have come with the agreement.
  if (!batch->agreed.empty() && is_beyond && agreement.inputs.empty()) {
    wiring_.termination.break_world(wiring_.departures.news_of_first(set));
  }
}

// Runs before anything is planned, so that all ranks change their plans at the same agreement.
void Agreements::adopt_tuning(const Agreement& agreement) {
  if (agreement.trial != wiring_.executor.tuner().trial()) return;
  wiring_.executor.conclude_trial(agreement.slowest);
  apply_tuning();
}

void Agreements::apply_tuning() {
  const Tuning& tuning = wiring_.executor.tuner().current();
  wiring_.mesh.set_chunk(tuning.chunk_bytes);
  wiring_.mesh.set_connections(tuning.streams);
}

void Agreements::fail_what_was_refused(ProcessSet& set, const Agreement& agreement) {
  for (const Agreement::Failure& failure : agreement.failures) {
    if (failure.is_refused_here) continue;  // what is pending under the name is a later call
    if (const OperationPtr operation = set.pending.extract(failure.key)) {
      wiring_.tracker.complete(operation, Status::mismatch(failure.message));
    }
  }
}

void Agreements::complete_join(ProcessSet& set, const Agreement& agreement) {
  const auto is_join = [](const auto& entry) {
    return entry.second->description.kind == OperationKind::kJoin;
  };
  const auto found = std::find_if(set.pending.begin(), set.pending.end(), is_join);
  if (found == set.pending.end()) return;
  const OperationPtr join = set.pending.extract(found);
  join->last_rank = agreement.last_joined;
  join->announced = agreement.announced;
  wiring_.tracker.complete(join, Status::ok());
}

void Agreements::fill(Batch& batch, ProcessSet& set, const Agreement& agreement) {
  for (Agreement::Ready ready : agreement.ready) {
    ready.sequence = ++set.agreed_operations;
    OperationPtr operation = set.pending.extract(ready.key());
    if (operation != nullptr) {
      operation->sequence = ready.sequence;
      operation->announced = agreement.announced;
    }
    const OperationKind kind = ready.description().kind;
    Status status = check_agreed(ready, agreement.joined);
    if (status.is_ok() &&
        (kind == OperationKind::kAddProcessSet || kind == OperationKind::kRemoveProcessSet)) {
      status = wiring_.sets.add_or_remove(ready, operation.get());
    }
    if (!status.is_ok() || kind >= OperationKind::kBarrier) {
      if (operation != nullptr) wiring_.tracker.complete(operation, status);
      continue;
    }
    if (operation != nullptr) trace_agreed(wiring_.timeline, *operation);
    batch.agreed.push_back(std::move(ready));
    batch.operations.push_back(std::move(operation));
  }
}

// ---- Launches on GPUs.

void Agreements::launch_ended(ProcessSet& set) {
  // A set that has been closed agrees on nothing more.
  if (wiring_.termination.reason().is_ok() && wiring_.sets.find(set.id).get() == &set) advance(set);
}

// A round in which this rank cast its ballot before `time` may still end in launches that come
// before those of `time`, unless this rank has nothing on a GPU in that set.
bool Agreements::may_be_preceded(int32_t set, uint64_t time) {
  bool may_be = false;
  for (const auto& [id, other] : process_sets()) {
    if (id == set || other->negotiator == nullptr) continue;
    const Negotiator& negotiator = *other->negotiator;
    if (!negotiator.is_in_round() || negotiator.time_of_ballot() >= time) continue;
    const bool has_launches = other->launches != nullptr && other->launches->has_waiting();
    const bool has_pending = std::ranges::any_of(other->pending, [](const auto& entry) {
      return entry.second->description.device == DeviceKind::kCuda;
    });
    if (!has_launches && !has_pending) continue;
    may_be = true;
    request_round(*other);
  }
  return may_be;
}

void Agreements::request_round(ProcessSet& set) {
  const uint64_t round = set.negotiator->completed_rounds() + 1;
  if (std::exchange(set.demanded_round, round) == round) return;
  const std::vector<std::byte> message = RoundDemand{set.id, round}.write();
  for (const int rank : set.ranks) {
    if (rank != wiring_.mesh.topology().rank) wiring_.mesh.send_control(rank, message);
  }
}

}  // namespace perseus
