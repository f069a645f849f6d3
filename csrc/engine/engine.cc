#include "engine/engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/start_thread.h"
#include "bootstrap/bootstrap.h"
#include "codec/codec.h"
#include "execution/trace.h"
#include "observe/log.h"

namespace perseus {
namespace {

constexpr std::string_view kInitBarrier = "perseus.init";

// Who lacks descriptors tries for so long to tell the others.
constexpr std::chrono::seconds kPatienceInWant{2};

// Of which a change of threads is some hundredths; threads that come and go cost more.
constexpr int64_t kMuch = 4 << 20;

// How many times over the thread runs an engine.
thread_local int runs = 0;
class RunsHere {
 public:
  RunsHere() { ++runs; }
  RunsHere(const RunsHere&) = delete;
  ~RunsHere() { --runs; }
};

// This process is the child of a callback, and has no other threads.
std::atomic<bool> is_child_of_callback{false};

// The end of the job is one reason for all that is outstanding; each error says what of.
Status ended(const Operation& operation, Status why) {
  const bool is_users = operation.name_id >= 0;
  if (!is_users || why.code() != StatusCode::kAborted) return why;
  return Status::aborted(title(operation.key) + ": " + why.message());
}

// The processors that PERSEUS_THREAD_AFFINITY gives to the local ranks' engine threads.
Result<std::vector<int>> processors(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream items(list);
  std::string item;
  while (std::getline(items, item, ',')) {
    int number = -1;
    const char* end = item.data() + item.size();
    const auto [stopped_at, error] = std::from_chars(item.data(), end, number);
    if (error != std::errc() || stopped_at != end || number < 0) {
      return Status::invalid_argument("PERSEUS_THREAD_AFFINITY='" + list +
                                      "' is malformed; it takes numbers of processors from 0 on, "
                                      "separated by commas");
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

// ---- Start and end.

Engine::Engine(Settings settings, Names& names, Timeline& timeline, Counters& counters)
    : settings_(std::move(settings)),
      names_(names),
      timeline_(timeline),
      counters_(counters),
      loop_(std::chrono::microseconds(settings_.spin_us)),
      gpus_(loop_, std::chrono::seconds(settings_.nccl_timeout)) {}

Result<std::unique_ptr<Engine>> Engine::start(Settings settings, const std::vector<int>& ranks,
                                              int generation, Names& names, Timeline& timeline,
                                              Counters& counters) {
  auto affinity = processors(settings.thread_affinity);
  if (!affinity.is_ok()) {
    decline(affinity.status(), ranks, generation);
    return affinity.status();
  }
  std::unique_ptr<Engine> engine(new Engine(std::move(settings), names, timeline, counters));
  engine->processors_ = std::move(affinity).value();
  if (const Status lacking = engine->loop_.status(); !lacking.is_ok()) {
    engine.reset();  // what it has may do to tell the others
    decline(lacking, ranks, generation, kPatienceInWant);
    return lacking;
  }
  PERSEUS_RETURN_IF_ERROR(engine->connect(ranks, generation));
  const Status started =
      start_thread(engine->thread_, "the engine", [raw = engine.get()] { raw->run_thread(); });
  if (!started.is_ok()) {
    // This thread tells the others.
    engine->loop_.post([&] { engine->end_with_news(started); });
    engine->loop_.run();
    return started;
  }
  // Everyone is there and can be reached, or init says who is not.
  const Status status = engine->run(own_operation(OperationKind::kBarrier, kInitBarrier, {}),
                                    std::chrono::seconds(engine->settings_.start_timeout));
  if (!status.is_ok()) {
    engine->shutdown();
    return status;
  }
  return engine;
}

void Engine::decline(const Status& why, const std::vector<int>& ranks, int generation,
                     std::optional<std::chrono::seconds> patience) {
  Settings settings;
  if (patience) settings.start_timeout = static_cast<int>(patience->count());
  auto bootstrap = make_bootstrap(settings, ranks, generation);
  if (bootstrap.is_ok()) Mesh::decline(*bootstrap.value(), why);
}

Status Engine::connect(const std::vector<int>& ranks, int generation) {
  auto bootstrap = make_bootstrap(settings_, ranks, generation);
  if (!bootstrap.is_ok()) return bootstrap.status();
  // Asked now: MPI may be finalised before the engine's end.
  if (const Mpi* mpi = bootstrap.value()->mpi()) mpi_thread_level_ = mpi->thread_level();
  auto mesh = Mesh::create(loop_, settings_, *bootstrap.value(), *this);
  if (!mesh.is_ok()) return mesh.status();
  mesh_ = std::move(mesh).value();
  rank_ = topology().rank;
  size_ = topology().size;
  is_bound_ = mesh_->needs_one_thread();
  loop_.lend_by(*this);
  configure_log(static_cast<LogLevel>(settings_.log_level), settings_.log_hide_time, rank_);

  executor_ = std::make_unique<Executor>(
      RunContext{settings_, buffers_, timeline_, residuals_, counters_, rank_, gpus_},
      static_cast<ExecutorHost&>(*this), topology().local_size(),
      static_cast<int>(topology().host_names.size()));
  stall_watch_ = std::make_unique<StallWatch>(loop_, settings_, rank_, counters_,
                                              static_cast<StallWatchHost&>(*this));
  peer_watch_ = std::make_unique<PeerWatch>(loop_, std::chrono::seconds(settings_.peer_timeout),
                                            static_cast<PeerWatchHost&>(*this));
  mix_ups_ = std::make_unique<MixUps>(loop_, std::chrono::seconds(settings_.mix_up_time),
                                      static_cast<MixUpHost&>(*this));
  std::vector<int> everyone(size_);
  for (int r = 0; r < size_; ++r) everyone[r] = r;
  open_set(next_set_++, everyone);
  loop_.add_poller(this);
  if (generation > 0) tell_launcher_who_met();
  return {};
}

void Engine::run_thread() {
  pthread_setname_np(pthread_self(), "perseus");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: it sleeps for 100 us at times
  const auto local_rank = static_cast<size_t>(topology().local_rank());
  if (local_rank < processors_.size()) {
    const int processor = processors_[local_rank];
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) {
      PERSEUS_LOG(kWarning, "PERSEUS_THREAD_AFFINITY: there is no processor " << processor);
    }
  }
  const RunsHere here;
  loop_.run();
}

bool Engine::runs_here() { return runs > 0; }

void Engine::after_fork_in_child() {
  if (runs_here()) is_child_of_callback.store(true, std::memory_order_relaxed);
}

void Engine::help(const Event& awaited, Clock::time_point until) {
  const RunsHere here;
  loop_.help(awaited, until);
}

Engine::~Engine() { shutdown(); }

void Engine::shutdown(const std::string& why) {
  if (!thread_.joinable()) return;
  loop_.post([this, why] { begin_shutdown(why); });
  thread_.join();
  loop_.remove_poller(this);
  // What was submitted while the thread came to its end.
  const RunsHere here;
  poll();
}

// ---- Submission and completion.

Status Engine::submit(OperationPtr operation) {
  const Clock::time_point now = operation->submitted_at = Clock::now();
  const bool is_bound = operation->is_bound;
  const bool is_on_gpu = operation->gpu != nullptr;
  if (is_on_gpu) is_bound_.store(true, std::memory_order_relaxed);
  bool is_first = true;
  {
    std::lock_guard lock(queue_mutex_);
    if (!refusal_.is_ok()) {
      const Status why = ended(*operation, refusal_);
      operation->give_back_name(names_);
      return why;
    }
    if (is_bound) bound_operations_.fetch_add(1, std::memory_order_relaxed);
    queue_.push_back(std::move(operation));
    is_first = !has_submissions_.exchange(true, std::memory_order_acq_rel);
  }
  if (!is_first && !loop_.is_lent()) return {};
  if (is_bound || is_on_gpu) {
    loop_.wake();
  } else {
    // Who has just waited is likely to wait for this one as well, and then does all by itself.
    loop_.wake_unless_helped(now);
  }
  return {};
}

void Engine::refuse(int32_t set, std::string_view key, std::string reason) {
  {
    std::lock_guard lock(queue_mutex_);
    refused_.push_back({set, std::string(key), std::move(reason)});
    if (has_submissions_.exchange(true, std::memory_order_acq_rel)) return;
  }
  loop_.wake();
}

bool Engine::may_lend() const {
  return bound_operations_.load(std::memory_order_relaxed) == 0 &&
         !is_bound_.load(std::memory_order_relaxed) && !has_user_codecs();
}

bool Engine::has_much_to_do() const { return bytes_under_way_ >= kMuch; }

bool Engine::is_at_rest() const { return under_way_ == 0 && !has_news() && executor_->is_idle(); }

bool Engine::poll() {
  if (!has_news()) return false;
  std::vector<Refused> refused;
  {
    std::lock_guard lock(queue_mutex_);
    // Something in the queue is for the engine's own thread, which has been recalled.
    if (loop_.is_lent() && !may_lend()) return false;
    has_submissions_.store(false, std::memory_order_release);
    accepted_.swap(queue_);
    refused.swap(refused_);
  }
  // First, since an operation of the same name can only have come after.
  for (const Refused& refusal : refused) accept(refusal);
  for (const OperationPtr& operation : accepted_) accept(operation);
  // One round speaks for all that came together.
  for (const OperationPtr& operation : accepted_) {
    if (const ProcessSetPtr set = find_set(operation->process_set)) advance(*set);
  }
  accepted_.clear();
  return true;
}

void Engine::accept(const Refused& refused) {
  const ProcessSetPtr set = find_set(refused.set);
  if (!over().is_ok()) return;
  const bool is_member = set != nullptr && set->negotiator != nullptr;
  if (!is_member) return mix_ups_->add_stray(refused.key, refused.reason);
  if (!set->broken.is_ok()) return;
  set->negotiator->refuse(refused.key, {refused.reason, -1, ""});
  advance(*set);
}

void Engine::accept(const OperationPtr& operation) {
  counters_.operations_submitted.add();
  ++under_way_;
  bytes_under_way_ += operation->description.bytes();
  const ProcessSetPtr set = find_set(operation->process_set);
  if (const Status why = over(); !why.is_ok()) return complete(operation, why);
  if (set == nullptr) return complete(operation, set_is_gone(operation->process_set));
  if (!set->broken.is_ok()) return complete(operation, set->broken);
  if (operation->new_set >= 0) return open_or_close(operation);
  Status possible = check_at_rest(*operation);
  if (possible.is_ok()) possible = executor_->check_gpu(*set, *operation);
  if (!possible.is_ok()) {
    set->negotiator->refuse(operation->key, {possible.message(), -1, ""});
    return complete(operation, std::move(possible));
  }

  set->pending.insert(operation->key, operation);
  stall_watch_->note_submission(*operation);
  stall_watch_->watch(set);
  peer_watch_->watch();
  mix_ups_->watch(*operation);
  trace_negotiation(timeline_, *operation);
  if (operation->description.kind == OperationKind::kJoin) {
    set->negotiator->join();
  } else {
    // The description lives as long as its operation.
    set->negotiator->submit(operation->key, {operation, &operation->description});
  }
}

void Engine::complete(const OperationPtr& operation, Status status) {
  if (complete_silently(operation, std::move(status))) operation->done.wake();
}

bool Engine::complete_silently(const OperationPtr& operation, Status status) {
  (status.is_ok() ? counters_.operations_completed : counters_.operations_failed).add();
  if (status.code() == StatusCode::kAborted && !closing_) tell_launcher_who_is_to_blame();
  trace_complete(timeline_, *operation);
  operation->status = ended(*operation, std::move(status));
  operation->give_back_name(names_);
  --under_way_;
  bytes_under_way_ -= operation->description.bytes();
  const OperationCallback callback = std::move(operation->callback);
  const bool has_waiters = operation->done.set_silently();
  if (operation->gpu != nullptr) operation->launched.set();
  if (callback) {
    callback(*operation);
    if (is_child_of_callback.load(std::memory_order_relaxed)) {
      PERSEUS_LOG(kError,
                  "a callback has forked, and its child has returned from it: the child ends");
      _exit(1);
    }
  }
  if (operation->is_bound) bound_operations_.fetch_sub(1, std::memory_order_relaxed);
  return has_waiters;
}

// A thread that waits for many operations one by one is woken once for all that were merged: when
// it runs, it finds the others done.
void Engine::operation_done(const OperationPtr& operation, const Status& status) {
  if (complete_silently(operation, status)) to_wake_.push_back(operation);
}

void Engine::wake_waiters() {
  for (const OperationPtr& operation : to_wake_) operation->done.wake();
  to_wake_.clear();
}

}  // namespace perseus
