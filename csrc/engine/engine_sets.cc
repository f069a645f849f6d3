// The engine's process sets, and what they agree on.
#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "engine/agreed_checks.h"
#include "engine/engine.h"
#include "execution/trace.h"

namespace perseus {
namespace {

// Names the engine's own operation that adds or removes a set; there is one at a time.
constexpr std::string_view kAdmin = "perseus.process_set";

// How long a set that is being closed waits for the end of a round in which a member may be that
// has not opened it.
constexpr std::chrono::seconds kRoundTime{1};

}  // namespace

// Ties a negotiator to the engine.
class SetHost final : public NegotiatorHost {
 public:
  SetHost(Engine& engine, ProcessSet& set) : engine_(engine), set_(set) {}
  void send(int to_index, std::span<const std::byte> message) override {
    engine_.counters_.agreement_messages_sent.add();
    engine_.counters_.agreement_bytes_sent.add(message.size());
    engine_.mesh_->send_control(set_.ranks[to_index], message);
  }
  void agreed(const Agreement& agreement) override { engine_.on_agreement(set_, agreement); }
  uint64_t time() const override { return engine_.time_; }
  std::span<const std::byte> input(const std::string& key) override {
    const auto found = set_.pending.find(key);
    if (found == set_.pending.end()) return {};
    return engine_.executor_->input_for_agreement(*found->second);
  }

 private:
  Engine& engine_;
  ProcessSet& set_;
};

void Engine::open_set(int32_t id, std::vector<int> ranks) {
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  set->ranks = ranks;
  set->index = set->index_of(rank_);
  if (set->index >= 0) {
    std::vector<Link*> links;
    std::vector<int> host_of;
    for (int rank : ranks) {
      links.push_back(rank == rank_ ? nullptr : &mesh_->link(rank));
      host_of.push_back(topology().host_of[rank]);
    }
    set->group = make_group(set->index, std::move(links), std::move(host_of));
    ByteWriter prefix;
    prefix.put(ControlKind::kBallot);
    prefix.put(id);
    set->host = std::make_unique<SetHost>(*this, *set);
    set->negotiator = std::make_unique<Negotiator>(
        set->index, set->group.size, ranks, static_cast<size_t>(settings_.cache_capacity),
        std::vector<std::byte>(prefix.bytes().begin(), prefix.bytes().end()), *set->host);
  }
  sets_[id] = set;
  {
    std::lock_guard lock(sets_mutex_);
    set_ranks_[id] = std::make_shared<const std::vector<int>>(std::move(ranks));
  }
  for (const auto& [rank, leaving] : left_) apply_leaving(*set, leaving);
  if (auto early = early_messages_.extract(id); !early.empty()) {
    for (const auto& [from, message] : early.mapped()) on_control(from, message);
  }
}

Status Engine::set_is_gone(int32_t id) {
  const char* const how = id < kFirstOpenedSet ? " has been removed" : " has been closed";
  return Status::invalid_argument("process set " + std::to_string(id) + how);
}

void Engine::close_set(int32_t id) {
  const ProcessSetPtr set = find_set(id);
  const Status why = set_is_gone(id);
  fail_pending(*set, why);
  executor_->cancel_launches(*set, why);
  sets_.erase(id);
  std::lock_guard lock(sets_mutex_);
  set_ranks_.erase(id);
}

ProcessSetPtr Engine::find_set(int32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second;
}

void Engine::advance(ProcessSet& set) {
  if (set.negotiator == nullptr) return;
  if (set.id == kWorld) {
    const Tuner& tuner = executor_->tuner();
    if (const auto result = tuner.result()) set.negotiator->measured(tuner.trial(), *result);
  }
  const uint64_t described = set.negotiator->counters().descriptions_sent;
  set.negotiator->advance();
  if (const Status& failure = set.negotiator->failure(); !failure.is_ok()) {
    return break_world(failed_here(failure));
  }
  counters_.descriptions_sent.add(set.negotiator->counters().descriptions_sent - described);
  if (!set.negotiator->is_exhausted()) return;
  if (!set.pending.empty()) fail_pending(set, set.broken);
  // Whoever called may still need the set.
  if (closing_sets_.contains(set.id)) loop_.post([this, id = set.id] { finish_closing(id); });
}

void Engine::on_agreement(ProcessSet& set, const Agreement& agreement) {
  counters_.agreements.add();
  time_ = std::max(time_, agreement.time);
  // What has ended with an error here must not end well elsewhere, without this rank's part.
  if (!over().is_ok()) return;
  executor_->hold_launches();
  // Before anything is planned: all ranks change their plans at the same agreement.
  if (set.id == kWorld && agreement.trial == executor_->tuner().trial()) {
    executor_->conclude_trial(agreement.slowest);
    const Tuning& tuning = executor_->tuner().current();
    mesh_->set_chunk(tuning.chunk_bytes);
    mesh_->set_connections(tuning.streams);
  }
  if (timeline_.marks_cycles()) timeline_.instant({}, "CYCLE_START");
  mix_ups_->on_agreement(set, agreement);
  for (const Agreement::Failure& failure : agreement.failures) {
    if (failure.is_refused_here) continue;  // what is pending under the name is a later call
    if (const OperationPtr operation = set.pending.extract(failure.key)) {
      complete(operation, Status::mismatch(failure.message));
    }
  }
  if (agreement.last_joined >= 0) {
    const auto is_join = [](const auto& entry) {
      return entry.second->description.kind == OperationKind::kJoin;
    };
    const auto found = std::find_if(set.pending.begin(), set.pending.end(), is_join);
    if (found != set.pending.end()) {
      const OperationPtr join = set.pending.extract(found);
      join->last_rank = agreement.last_joined;
      complete(join, Status::ok());
    }
  }

  const std::shared_ptr<Batch> batch = executor_->new_batch();
  for (const Agreement::Ready& ready : agreement.ready) {
    OperationPtr operation = set.pending.extract(ready.key());
    const OperationKind kind = ready.description().kind;
    Status status = check_agreed(ready, agreement.joined);
    if (status.is_ok() &&
        (kind == OperationKind::kAddProcessSet || kind == OperationKind::kRemoveProcessSet)) {
      status = conclude_admin(ready, operation.get());
    }
    if (!status.is_ok() || kind >= OperationKind::kBarrier) {
      if (operation != nullptr) complete(operation, status);
      continue;
    }
    if (operation != nullptr) trace_agreed(timeline_, *operation);
    batch->agreed.push_back(ready);
    batch->operations.push_back(std::move(operation));
  }
  stall_watch_->note_agreement();
  const bool is_beyond = agreement.round > set.negotiator->last_round();
  if (!batch->agreed.empty() && !is_beyond) {
    batch->set = sets_.at(set.id);
    batch->round = agreement.round;
    batch->is_joined = !agreement.joined.empty();
    executor_->run(batch, agreement.inputs);
  }
  executor_->settle_launches(set, agreement);
  // It has ended with an error here, and must not go on elsewhere without this rank's part, unless
  // all that it takes has come along.
  if (!batch->agreed.empty() && is_beyond && agreement.inputs.empty()) break_world(lacking(set));
}

void Engine::launch_ended(ProcessSet& set) {
  // A set that has been closed agrees on nothing more.
  if (over().is_ok() && find_set(set.id).get() == &set) advance(set);
}

// A round in which this rank has cast its ballot may end in launches that come before those of that
// time, unless none of ours is on a GPU.
bool Engine::may_be_preceded(int32_t set, uint64_t time) {
  bool may_be = false;
  for (const auto& [id, other] : sets_) {
    if (id == set || other->negotiator == nullptr) continue;
    const Negotiator& negotiator = *other->negotiator;
    if (!negotiator.is_in_round() || negotiator.time_of_ballot() >= time) continue;
    const bool has_launches = other->launches != nullptr && other->launches->has_waiting();
    const bool has_pending = std::ranges::any_of(other->pending, [](const auto& entry) {
      return entry.second->description.device == DeviceKind::kCuda;
    });
    if (!has_launches && !has_pending) continue;
    may_be = true;
    press(*other);
  }
  return may_be;
}

void Engine::press(ProcessSet& set) {
  const uint64_t round = set.negotiator->completed_rounds() + 1;
  if (std::exchange(set.pressed_round, round) == round) return;
  ByteWriter writer;
  writer.put(ControlKind::kPressing);
  writer.put(set.id);
  writer.put(round);
  for (const int rank : set.ranks) {
    if (rank != rank_) mesh_->send_control(rank, writer.bytes());
  }
}

void Engine::on_pressing(int from, ByteReader reader, std::span<const std::byte> message) {
  const auto id = reader.get<int32_t>();
  const auto round = reader.get<uint64_t>();
  if (reader.failed()) {
    return break_world({from, topology().name(from) + " sent a malformed control message"});
  }
  const ProcessSetPtr set = find_set(id);
  if (set == nullptr || set->negotiator == nullptr) return keep_early(id, from, message);
  // A rank can be at most one round ahead.
  if (round > set->negotiator->completed_rounds() + 2) {
    return break_world({from, topology().name(from) + " presses for a round that it cannot be in"});
  }
  set->negotiator->press(round);
  advance(*set);
}

// Of the rounds that the closer ended, it has done its part.
void Engine::on_closed(int from, const Closed& closed) {
  const ProcessSetPtr set = find_set(closed.process_set);
  if (set == nullptr || set->negotiator == nullptr) {
    return keep_early(closed.process_set, from, closed.write());
  }
  if (!set->negotiator->limit_rounds(closed.last_round)) return;
  tell_neighbours(*set, closed.write());
  go_without(*set, closed.rank);
}

void Engine::keep_early(int32_t set, int from, std::span<const std::byte> message) {
  if (set < next_set_ || closed_sets_.contains(set)) return;
  early_messages_[set].emplace_back(from, std::vector(message.begin(), message.end()));
}

// Every rank of the world does this at the same place in the order of operations, and so comes to
// the same ids and the same errors.
Status Engine::conclude_admin(const Agreement::Ready& ready, Operation* operation) {
  const std::vector<int32_t>& ranks = ready.description().ranks;
  if (ready.description().kind == OperationKind::kRemoveProcessSet) {
    const int32_t id = ranks.front();
    if (id == kWorld || id >= kFirstOpenedSet || find_set(id) == nullptr) {
      return Status::invalid_argument("there is no process set " + std::to_string(id) +
                                      " that could be removed");
    }
    close_set(id);
    return {};
  }
  for (const auto& [id, set] : sets_) {
    if (id >= kFirstOpenedSet) break;  // not known to all
    if (std::equal(set->ranks.begin(), set->ranks.end(), ranks.begin(), ranks.end())) {
      return Status::invalid_argument("a process set of the same ranks exists already: set " +
                                      std::to_string(id));
    }
  }
  const int32_t id = next_set_++;
  open_set(id, {ranks.begin(), ranks.end()});
  if (operation != nullptr) operation->new_set = id;
  return {};
}

void Engine::fail_pending(ProcessSet& set, const Status& why) {
  if (set.broken.is_ok()) set.broken = why;
  for (auto& [key, operation] : std::exchange(set.pending, {})) complete(operation, why);
}

OperationPtr Engine::own_operation(OperationKind kind, std::string_view name,
                                   std::vector<int32_t> ranks) {
  auto operation = std::make_shared<Operation>();
  operation->process_set = kWorld;
  operation->key = operation_key(kind, name);
  operation->description.kind = kind;
  operation->description.ranks = std::move(ranks);
  return operation;
}

Status Engine::run(const OperationPtr& operation, std::optional<std::chrono::seconds> time_out) {
  PERSEUS_RETURN_IF_ERROR(submit(operation));
  return wait_for(*operation, time_out);
}

Status Engine::wait_for(Operation& operation, std::optional<std::chrono::seconds> time_out) {
  const auto deadline = time_out ? Clock::now() + *time_out : Clock::time_point::max();
  while (!operation.done.wait(kInterruptionCheck)) {
    if (is_interrupted()) return interrupted_status();
    if (Clock::now() < deadline) continue;
    return Status::timed_out("not all of the " + std::to_string(size_) +
                             " ranks completed init within " + std::to_string(time_out->count()) +
                             " s (PERSEUS_START_TIMEOUT)");
  }
  return operation.status;
}

Status Engine::check_ranks(std::vector<int32_t>& ranks) const {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= size_ ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Status::invalid_argument(
        "the ranks of a process set must be different numbers from 0 to " +
        std::to_string(size_ - 1));
  }
  return {};
}

Result<int32_t> Engine::add_process_set(std::vector<int32_t> ranks) {
  const Status check = check_ranks(ranks);
  const auto added = administer(OperationKind::kAddProcessSet, std::move(ranks), check);
  if (!added.is_ok()) return added.status();
  return added.value()->new_set;
}

Status Engine::remove_process_set(int32_t set) {
  return administer(OperationKind::kRemoveProcessSet, {set}, Status::ok()).status();
}

Result<OperationPtr> Engine::administer(OperationKind kind, std::vector<int32_t> ranks,
                                        const Status& check) {
  // Not a timed mutex, which ThreadSanitizer of older compilers does not know.
  std::unique_lock lock(admin_mutex_, std::try_to_lock);
  while (!lock.owns_lock()) {
    if (is_interrupted()) return interrupted_status();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.try_lock();
  }
  if (last_admin_ != nullptr && !last_admin_->done.is_set()) {
    const Description& last = last_admin_->description;
    if (!check.is_ok() || last.kind != kind || last.ranks != ranks) {
      return Status::duplicate_name(
          "the last add_process_set or remove_process_set, which was interrupted, is still under "
          "way; make the same call again to wait for it");
    }
  } else if (!check.is_ok()) {
    refuse(kWorld, operation_key(kind, kAdmin), check.message());
    return check;
  } else {
    const OperationPtr operation = own_operation(kind, kAdmin, std::move(ranks));
    PERSEUS_RETURN_IF_ERROR(submit(operation));
    last_admin_ = operation;
  }
  PERSEUS_RETURN_IF_ERROR(wait_for(*last_admin_));
  return last_admin_;
}

// Ranks learn of a removal and of what was agreed in the set at different moments. What is under
// way there would fail on some and run on others, which would wait for ever.
Status Engine::check_at_rest(const Operation& operation) const {
  if (operation.description.kind != OperationKind::kRemoveProcessSet) return {};
  const int32_t id = operation.description.ranks.front();
  const ProcessSetPtr set = find_set(id);
  if (set == nullptr) return {};
  const Operation* under_way =
      set->pending.empty() ? executor_->find_running(id) : set->pending.begin()->second.get();
  if (under_way == nullptr) return {};
  return Status::invalid_argument("process set " + std::to_string(id) +
                                  " cannot be removed: " + title(under_way->key) +
                                  " is still under way in it; wait for it first");
}

// The engine's thread, by itself: nothing is agreed on.
void Engine::open_or_close(const OperationPtr& operation) {
  if (operation->description.kind == OperationKind::kRemoveProcessSet) {
    begin_closing(operation);
  } else {
    complete(operation, open(*operation));
  }
}

Status Engine::open(const Operation& operation) {
  const int32_t id = operation.new_set;
  if (find_set(id) != nullptr || closed_sets_.contains(id)) {
    return Status::invalid_argument("process set " + std::to_string(id) +
                                    " cannot be opened: the id has been used before");
  }
  open_set(id, {operation.description.ranks.begin(), operation.description.ranks.end()});
  return {};
}

// A round that has this rank's ballot may end on some members, and what is then ready runs there:
// so it ends here as well, and this rank does its part.
void Engine::begin_closing(const OperationPtr& operation) {
  const int32_t id = operation->new_set;
  const ProcessSetPtr set = find_set(id);
  if (set == nullptr || closing_sets_.contains(id)) {
    return complete(operation,
                    Status::invalid_argument("process set " + std::to_string(id) + " is not open"));
  }
  closing_sets_[id] = operation;
  if (set->broken.is_ok()) set->broken = set_is_gone(id);
  Negotiator& negotiator = *set->negotiator;
  negotiator.limit_rounds(negotiator.completed_rounds() + (negotiator.is_in_round() ? 1 : 0));
  if (!negotiator.is_exhausted()) {
    press(*set);
    loop_.call_at(Clock::now() + kRoundTime, [this, id] { finish_closing(id); });
  }
  advance(*set);
}

void Engine::finish_closing(int32_t id) {
  const auto closing = closing_sets_.extract(id);
  if (closing.empty()) return;
  const ProcessSetPtr set = find_set(id);
  const Closed closed{id, rank_, set->negotiator->completed_rounds()};
  tell_neighbours(*set, closed.write());
  close_set(id);
  closed_sets_.insert(id);
  complete(closing.mapped(), {});
}

void Engine::fail_closing(const Status& why) {
  for (auto& [id, operation] : std::exchange(closing_sets_, {})) complete(operation, why);
}

Status Engine::open_process_set(int32_t set, std::vector<int32_t> ranks) {
  PERSEUS_RETURN_IF_ERROR(check_ranks(ranks));
  if (set < kFirstOpenedSet || set > kLastOpenedSet) {
    return Status::invalid_argument("the id of an opened process set lies between " +
                                    std::to_string(kFirstOpenedSet) + " and " +
                                    std::to_string(kLastOpenedSet));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) {
    return Status::invalid_argument("rank " + std::to_string(rank_) +
                                    " cannot open a process set that it does not belong to");
  }
  const auto operation = own_operation(OperationKind::kAddProcessSet, kAdmin, std::move(ranks));
  operation->new_set = set;
  return run(operation);
}

Status Engine::close_process_set(int32_t set) {
  if (set < kFirstOpenedSet) {
    return Status::invalid_argument("process set " + std::to_string(set) + " was not opened");
  }
  const auto operation = own_operation(OperationKind::kRemoveProcessSet, kAdmin, {});
  operation->new_set = set;
  return run(operation);
}

Result<Engine::Ranks> Engine::share_process_set_ranks(int32_t set) const {
  std::lock_guard lock(sets_mutex_);
  const auto found = set_ranks_.find(set);
  if (found == set_ranks_.end()) {
    return Status::invalid_argument("there is no process set " + std::to_string(set));
  }
  return found->second;
}

Result<std::vector<int>> Engine::process_set_ranks(int32_t set) const {
  const auto ranks = share_process_set_ranks(set);
  if (!ranks.is_ok()) return ranks.status();
  return *ranks.value();
}

std::vector<int32_t> Engine::process_sets() const {
  std::lock_guard lock(sets_mutex_);
  std::vector<int32_t> ids;
  for (const auto& [id, ranks] : set_ranks_) ids.push_back(id);
  return ids;
}

}  // namespace perseus
