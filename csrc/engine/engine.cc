#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <sstream>

#include "bootstrap/bootstrap.h"
#include "engine/agreed_checks.h"
#include "engine/trace.h"
#include "observe/log.h"

namespace perseus {
namespace {

// How long shutdown waits for other ranks to take what was sent to them.
constexpr std::chrono::milliseconds kLinger{2000};
// How long bad news may take to leave.
constexpr std::chrono::milliseconds kNewsTime{100};

// The engine's own operations, all on the world.
constexpr std::string_view kInitBarrier = "perseus.init";
constexpr std::string_view kAdmin = "perseus.process_set";

Status shut_down_status() {
  return Status::aborted(
      "Perseus has been shut down on this rank: the operation was still under way, or came after; "
      "call init() again before any other");
}

Status left_status(int rank) {
  return Status::aborted("rank " + std::to_string(rank) +
                         " has shut down, so operations with it cannot complete; every rank must "
                         "submit the same operations before it shuts down");
}

// The CPU that the setting gives to this local rank's engine thread, or -1.
int processor_of(const std::string& list, int local_rank) {
  std::istringstream items(list);
  std::string item;
  for (int i = 0; std::getline(items, item, ','); ++i) {
    if (i == local_rank) return std::atoi(item.c_str());
  }
  return -1;
}

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

 private:
  Engine& engine_;
  ProcessSet& set_;
};

// ---- Start and end.

Engine::Engine(Settings settings, Names& names, Timeline& timeline, Counters& counters)
    : settings_(std::move(settings)),
      names_(names),
      timeline_(timeline),
      counters_(counters),
      loop_(std::chrono::microseconds(settings_.spin_us)) {}

Result<std::unique_ptr<Engine>> Engine::start(Settings settings, const std::vector<int>& ranks,
                                              int generation, Names& names, Timeline& timeline,
                                              Counters& counters) {
  std::unique_ptr<Engine> engine(new Engine(std::move(settings), names, timeline, counters));
  PERSEUS_RETURN_IF_ERROR(engine->connect(ranks, generation));
  engine->thread_ = std::thread([raw = engine.get()] { raw->run_thread(); });
  // Everyone is there and can be reached, or init says who is not.
  const Status status = engine->run_internal(OperationKind::kBarrier, std::string(kInitBarrier), {},
                                             std::chrono::seconds(engine->settings_.start_timeout));
  if (!status.is_ok()) {
    engine->shutdown();
    return status;
  }
  return engine;
}

Status Engine::connect(const std::vector<int>& ranks, int generation) {
  auto bootstrap = make_bootstrap(settings_, ranks, generation);
  if (!bootstrap.is_ok()) return bootstrap.status();
  PERSEUS_RETURN_IF_ERROR(check_settings_agree(settings_, *bootstrap.value()));
  auto mesh = Mesh::create(loop_, settings_, *bootstrap.value(), *this);
  if (!mesh.is_ok()) return mesh.status();
  mesh_ = std::move(mesh).value();
  rank_ = topology().rank;
  size_ = topology().size;
  configure_log(static_cast<LogLevel>(settings_.log_level), settings_.log_hide_time, rank_);

  for (int distance = 1; distance < size_; distance *= 2) {
    for (int peer : {(rank_ + distance) % size_, (rank_ - distance + size_) % size_}) {
      if (std::find(neighbours_.begin(), neighbours_.end(), peer) == neighbours_.end()) {
        neighbours_.push_back(peer);
      }
    }
  }
  executor_ = std::make_unique<Executor>(
      RunContext{settings_, buffers_, timeline_, residuals_, counters_, rank_},
      static_cast<ExecutorHost&>(*this));
  stall_watch_ = std::make_unique<StallWatch>(loop_, settings_, rank_, counters_,
                                              static_cast<StallWatchHost&>(*this));
  std::vector<int> everyone(size_);
  for (int r = 0; r < size_; ++r) everyone[r] = r;
  open_set(next_set_++, everyone);
  loop_.add_poller(this);
  return {};
}

void Engine::run_thread() {
  pthread_setname_np(pthread_self(), "perseus");
  const int processor = processor_of(settings_.thread_affinity, topology().local_rank());
  if (processor >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) {
      PERSEUS_LOG(kWarning, "PERSEUS_THREAD_AFFINITY: there is no processor " << processor);
    }
  }
  loop_.run();
}

Engine::~Engine() { shutdown(); }

void Engine::shutdown() {
  if (!thread_.joinable()) return;
  loop_.post([this] { begin_shutdown(); });
  thread_.join();
  loop_.remove_poller(this);
  // What was submitted while the thread came to its end.
  poll();
}

void Engine::begin_shutdown() {
  closing_ = true;
  {
    std::lock_guard lock(queue_mutex_);
    if (refusal_.is_ok()) refusal_ = shut_down_status();
  }
  if (broken_.is_ok()) {
    Leaving leaving;
    leaving.rank = rank_;
    for (const auto& [id, set] : sets_) {
      if (set->negotiator) leaving.rounds.emplace_back(id, set->negotiator->completed_rounds());
    }
    tell_neighbours(leaving.write());
    broken_ = shut_down_status();
    if (!executor_->is_idle()) mesh_->fail_all(broken_);
    executor_->cancel_waiting(broken_);
    for (const auto& [id, set] : sets_) fail_pending(*set, broken_);
  }
  close_when_idle();
}

void Engine::close_when_idle() {
  if (!closing_ || closed_ || !executor_->is_idle()) return;
  closed_ = true;
  mesh_->close(kLinger, [this] { loop_.stop(); });
}

// ---- Submission and completion.

Status Engine::submit(OperationPtr operation) {
  operation->submitted_at = std::chrono::steady_clock::now();
  {
    std::lock_guard lock(queue_mutex_);
    if (!refusal_.is_ok()) {
      if (operation->name_id >= 0) names_.give_back(operation->name_id);
      return refusal_;
    }
    queue_.push_back(std::move(operation));
    if (has_submissions_.exchange(true, std::memory_order_acq_rel)) return {};
  }
  loop_.wake();
  return {};
}

bool Engine::poll() {
  if (!has_submissions_.load(std::memory_order_acquire)) return false;
  {
    std::lock_guard lock(queue_mutex_);
    has_submissions_.store(false, std::memory_order_release);
    accepted_.swap(queue_);
  }
  for (const OperationPtr& operation : accepted_) accept(operation);
  // One round speaks for all that came together.
  for (const OperationPtr& operation : accepted_) {
    if (const ProcessSetPtr set = find_set(operation->process_set)) advance(*set);
  }
  accepted_.clear();
  return true;
}

void Engine::accept(const OperationPtr& operation) {
  counters_.operations_submitted.add();
  const ProcessSetPtr set = find_set(operation->process_set);
  if (!broken_.is_ok()) return complete(operation, broken_);
  if (set == nullptr) {
    return complete(operation, Status::invalid_argument("process set " +
                                                        std::to_string(operation->process_set) +
                                                        " has been removed"));
  }
  if (!set->broken.is_ok()) return complete(operation, set->broken);

  set->pending.emplace(operation->key, operation);
  stall_watch_->note_submission(*operation);
  stall_watch_->watch(set);
  trace_negotiation(timeline_, *operation);
  if (operation->description.kind == OperationKind::kJoin) {
    set->negotiator->join();
  } else {
    set->negotiator->submit(operation->key, operation->description);
  }
}

void Engine::complete(const OperationPtr& operation, Status status) {
  (status.is_ok() ? counters_.operations_completed : counters_.operations_failed).add();
  trace_complete(timeline_, *operation);
  operation->status = std::move(status);
  if (operation->name_id >= 0) names_.give_back(operation->name_id);
  const OperationCallback callback = std::move(operation->callback);
  operation->done.set();
  if (callback) callback(*operation);
}

void Engine::operation_done(const OperationPtr& operation, const Status& status) {
  complete(operation, status);
}

void Engine::shard_ended(const Status& status) {
  // Other ranks may wait for what this one can no longer send.
  if (!status.is_ok() && broken_.is_ok()) break_world({rank_, status.message()});
  close_when_idle();
}

// ---- Process sets.

void Engine::open_set(int32_t id, std::vector<int> ranks) {
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  set->ranks = ranks;
  set->index = set->index_of(rank_);
  if (set->index >= 0) {
    Group& group = set->group;
    group.index = set->index;
    group.size = static_cast<int>(ranks.size());
    std::map<int, int> per_host;
    for (int rank : ranks) {
      group.links.push_back(rank == rank_ ? nullptr : &mesh_->link(rank));
      group.host_of.push_back(topology().host_of[rank]);
      per_host[topology().host_of[rank]] += 1;
    }
    group.local_size = per_host[topology().host_of[rank_]];
    group.is_homogeneous = std::all_of(per_host.begin(), per_host.end(), [&](const auto& host) {
      return host.second == group.local_size;
    });
    ByteWriter prefix;
    prefix.put(ControlKind::kBallot);
    prefix.put(id);
    set->host = std::make_unique<SetHost>(*this, *set);
    set->negotiator = std::make_unique<Negotiator>(
        set->index, group.size, ranks, static_cast<size_t>(settings_.cache_capacity),
        std::vector<std::byte>(prefix.bytes().begin(), prefix.bytes().end()), *set->host);
  }
  sets_[id] = set;
  {
    std::lock_guard lock(sets_mutex_);
    set_ranks_[id] = std::move(ranks);
  }
  for (const auto& [rank, leaving] : left_) apply_leaving(*set, leaving);
  if (auto early = early_ballots_.extract(id); !early.empty()) {
    for (const auto& [from, message] : early.mapped()) on_control(from, message);
  }
}

void Engine::close_set(int32_t id) {
  const ProcessSetPtr set = find_set(id);
  fail_pending(*set,
               Status::invalid_argument("process set " + std::to_string(id) + " has been removed"));
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
  counters_.descriptions_sent.add(set.negotiator->counters().descriptions_sent - described);
  if (set.negotiator->is_exhausted() && !set.pending.empty()) fail_pending(set, set.broken);
}

void Engine::on_agreement(ProcessSet& set, const Agreement& agreement) {
  counters_.agreements.add();
  // Before anything is planned: all ranks change their plans at the same agreement.
  if (set.id == kWorld && agreement.trial == executor_->tuner().trial()) {
    executor_->conclude_trial(agreement.slowest);
  }
  if (timeline_.marks_cycles()) timeline_.instant({}, "CYCLE_START");
  for (const Agreement::Failure& failure : agreement.failures) {
    if (auto found = set.pending.extract(failure.key); !found.empty()) {
      complete(found.mapped(), Status::mismatch(failure.message));
    }
  }
  if (agreement.last_joined >= 0) {
    const auto is_join = [](const auto& entry) {
      return entry.second->description.kind == OperationKind::kJoin;
    };
    const auto found = std::find_if(set.pending.begin(), set.pending.end(), is_join);
    if (found != set.pending.end()) {
      const OperationPtr join = found->second;
      set.pending.erase(found);
      join->last_rank = agreement.last_joined;
      complete(join, Status::ok());
    }
  }

  std::vector<Agreement::Ready> runnable;
  std::vector<OperationPtr> operations;
  for (const Agreement::Ready& ready : agreement.ready) {
    OperationPtr operation;
    if (auto found = set.pending.extract(ready.key); !found.empty()) {
      operation = std::move(found.mapped());
    }
    const OperationKind kind = ready.description.kind;
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
    runnable.push_back(ready);
    operations.push_back(std::move(operation));
  }
  if (!runnable.empty()) {
    executor_->run(sets_.at(set.id), std::move(runnable), std::move(operations));
  }
}

// Every rank of the world does this at the same place in the order of operations, and so comes to
// the same ids and the same errors.
Status Engine::conclude_admin(const Agreement::Ready& ready, Operation* operation) {
  const std::vector<int32_t>& ranks = ready.description.ranks;
  if (ready.description.kind == OperationKind::kRemoveProcessSet) {
    const int32_t id = ranks.front();
    if (id == kWorld || find_set(id) == nullptr) {
      return Status::invalid_argument("there is no process set " + std::to_string(id) +
                                      " that could be removed");
    }
    close_set(id);
    return {};
  }
  for (const auto& [id, set] : sets_) {
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

Status Engine::run_internal(OperationKind kind, std::string name, std::vector<int32_t> ranks,
                            std::optional<std::chrono::seconds> time_out, OperationPtr* done) {
  auto operation = std::make_shared<Operation>();
  operation->process_set = kWorld;
  operation->key = operation_key(kind, name);
  operation->description.kind = kind;
  operation->description.ranks = std::move(ranks);
  if (done != nullptr) *done = operation;
  PERSEUS_RETURN_IF_ERROR(submit(operation));
  if (!operation->done.wait(time_out)) {
    return Status::timed_out("not all of the " + std::to_string(size_) +
                             " ranks completed init within " + std::to_string(time_out->count()) +
                             " s (PERSEUS_START_TIMEOUT)");
  }
  return operation->status;
}

Result<int32_t> Engine::add_process_set(std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= size_ ||
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return Status::invalid_argument(
        "the ranks of a process set must be different numbers from 0 to " +
        std::to_string(size_ - 1));
  }
  std::lock_guard lock(admin_mutex_);
  OperationPtr operation;
  PERSEUS_RETURN_IF_ERROR(run_internal(OperationKind::kAddProcessSet, std::string(kAdmin),
                                       std::move(ranks), {}, &operation));
  return operation->new_set;
}

Status Engine::remove_process_set(int32_t set) {
  std::lock_guard lock(admin_mutex_);
  return run_internal(OperationKind::kRemoveProcessSet, std::string(kAdmin), {set}, {});
}

Result<std::vector<int>> Engine::process_set_ranks(int32_t set) const {
  std::lock_guard lock(sets_mutex_);
  const auto found = set_ranks_.find(set);
  if (found == set_ranks_.end()) {
    return Status::invalid_argument("there is no process set " + std::to_string(set));
  }
  return found->second;
}

std::vector<int32_t> Engine::process_sets() const {
  std::lock_guard lock(sets_mutex_);
  std::vector<int32_t> ids;
  for (const auto& [id, ranks] : set_ranks_) ids.push_back(id);
  return ids;
}

// ---- Peers.

void Engine::tell_neighbours(std::span<const std::byte> message) {
  for (int peer : neighbours_) mesh_->send_control(peer, message);
}

void Engine::on_control(int from, std::span<const std::byte> message) {
  ByteReader reader(message);
  switch (reader.get<ControlKind>()) {
    case ControlKind::kBallot: return on_ballot(from, reader, message);
    case ControlKind::kLeaving:
      if (const auto leaving = Leaving::read(reader)) return on_leaving(*leaving);
      break;
    case ControlKind::kBroken:
      if (const auto broken = Broken::read(reader)) return break_world(*broken);
      break;
    case ControlKind::kStallQuery:
      if (const auto query = StallQuery::read(reader)) {
        return stall_watch_->answer(from, *query, find_set(query->process_set).get());
      }
      break;
    case ControlKind::kStallAnswer:
      if (const auto answer = StallAnswer::read(reader))
        return stall_watch_->on_answer(from, *answer);
      break;
  }
  break_world({from, "rank " + std::to_string(from) + " sent a malformed control message"});
}

void Engine::on_ballot(int from, ByteReader reader, std::span<const std::byte> message) {
  const auto id = reader.get<int32_t>();
  const ProcessSetPtr set = find_set(id);
  if (set == nullptr || set->negotiator == nullptr) {
    // The sender has seen the set made, or has not yet seen it removed.
    if (id >= next_set_)
      early_ballots_[id].emplace_back(from, std::vector(message.begin(), message.end()));
    return;
  }
  counters_.agreement_messages_received.add();
  counters_.agreement_bytes_received.add(message.size());
  const size_t prefix = sizeof(ControlKind) + sizeof(id);
  const Status status = set->negotiator->receive(message.subspan(std::min(prefix, message.size())));
  if (!status.is_ok()) {
    return break_world({from, status.message() + " from rank " + std::to_string(from)});
  }
  advance(*set);
}

void Engine::on_peer_lost(int peer, const Status& why) {
  if (left_.contains(peer) || closing_) return;
  break_world({peer, why.message()});
}

void Engine::on_peer_left(int peer) {
  if (left_.contains(peer)) return;
  on_leaving({peer, {}});
}

void Engine::on_leaving(const Leaving& leaving) {
  if (leaving.rank == rank_ || !left_.emplace(leaving.rank, leaving).second) return;
  tell_neighbours(leaving.write());
  for (const auto& [id, set] : std::map(sets_)) apply_leaving(*set, leaving);
}

// Rounds that the leaver completed will complete here too, since it sent its part of them before;
// later ones cannot.
void Engine::apply_leaving(ProcessSet& set, const Leaving& leaving) {
  if (!set.has(leaving.rank) || set.negotiator == nullptr) return;
  const auto round = std::find_if(leaving.rounds.begin(), leaving.rounds.end(),
                                  [&](const auto& entry) { return entry.first == set.id; });
  set.negotiator->limit_rounds(round == leaving.rounds.end() ? set.negotiator->completed_rounds()
                                                             : round->second);
  if (set.broken.is_ok()) set.broken = left_status(leaving.rank);
  advance(set);
}

void Engine::break_world(const Broken& broken) {
  if (!broken_.is_ok()) return;
  broken_ = Status::aborted(broken.why);
  PERSEUS_LOG(kError, broken.why);
  {
    std::lock_guard lock(queue_mutex_);
    if (refusal_.is_ok()) refusal_ = broken_;
  }
  tell_neighbours(broken.write());
  // The links close only when the news has had time to leave: else those who have not heard would
  // take this rank for the one that died.
  loop_.call_at(Clock::now() + kNewsTime, [this] { mesh_->fail_all(broken_); });
  executor_->cancel_waiting(broken_);
  for (const auto& [id, set] : sets_) fail_pending(*set, broken_);
}

void Engine::send_to(int rank, std::span<const std::byte> message) {
  mesh_->send_control(rank, message);
}

void Engine::end_stalled(const Status& why) { break_world({rank_, why.message()}); }

}  // namespace perseus
