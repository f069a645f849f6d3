#include "execution/executor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/settings.h"
#include "device/cuda/libraries.h"
#include "execution/error_feedback.h"
#include "execution/finite_check.h"
#include "execution/gathered_run.h"
#include "execution/gpu/nccl_group.h"
#include "execution/gpu/nccl_run.h"
#include "execution/results.h"
#include "execution/run_options.h"
#include "execution/shard_run.h"
#include "execution/size_exchange.h"
#include "execution/trace.h"
#include "observe/log.h"
#include "transport/mesh.h"

namespace perseus {
namespace {

Candidates tuning_candidates(const Settings& settings, bool several_hosts) {
  if (settings.disable_stream_tuning) return {};
  const Tuning start = Tuning::from(settings);
  Candidates candidates =
      several_hosts ? Candidates::between_hosts(start, connections_between_hosts(settings))
                    : Candidates::inside_a_host(start);
  const std::pair<std::string_view, std::vector<uint64_t>&> by_setting[] = {
      {"PERSEUS_ALLREDUCE_SHARD", candidates.shard_bytes},
      {"PERSEUS_ALLREDUCE_STREAMS", candidates.streams},
      {"PERSEUS_ALLREDUCE_FUSION", candidates.merge_bytes},
      {"PERSEUS_CREDIT", candidates.credit_bytes},
      {"PERSEUS_CHUNK", candidates.chunk_bytes}};
  for (const auto& [name, values] : by_setting) {
    if (settings.is_given(name)) values.clear();
  }
  return candidates;
}

// Once a model has diverged, all of its gradients stay non-finite.
constexpr int kMostNonFiniteLines = 100;

// A step ends after this many bursts of work even if no operation of it comes again, as when
// gathers have a new size each time.
constexpr int kMostBursts = 64;

uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15 + (hash >> 29);
}

// Tells an operation from the others of its process set in each training step: a hash of its id or,
// if an adapter has only numbered it, of what it does.
uint64_t fingerprint_of(const Agreement::Ready& ready) {
  if (!is_numbered(ready.key())) return mix(0, ready.id);
  const Description& description = ready.description();
  uint64_t hash = mix(~uint64_t{0}, static_cast<uint64_t>(description.kind));
  for (const TensorDescription& tensor : description.tensors) {
    hash = mix(hash, static_cast<uint64_t>(tensor.dtype));
    hash = mix(hash, static_cast<uint64_t>(tensor.elements()));
  }
  return hash;
}

// How many bytes may be moved at once and still be in this rank's caches when they are done. Two
// ranks on a host have little under way at a time, so that results stay in the last-level cache
// however much is moved. More ranks share half of a usual cache of 32 MiB. (The size that the
// system reports is no help: under a hypervisor it may be the sum of ten such caches.)
uint64_t cached_bytes(int local_size) {
  constexpr uint64_t kCachedOfHost = 16 << 20;
  return local_size <= 2 ? UINT64_MAX : kCachedOfHost / static_cast<uint64_t>(local_size);
}

}  // namespace

Executor::Executor(RunContext context, ExecutorHosts hosts, int local_size, WorldShape shape)
    : context_(context),
      several_hosts_(shape.has_several_hosts()),
      cached_bytes_(cached_bytes(local_size)),
      hosts_(hosts),
      tuner_(Tuning::from(context.settings), tuning_candidates(context.settings, several_hosts_),
             TuningEffort::from(context.settings), shape),
      admission_(most_at_once(), context.settings.credit_bytes),
      launches_(context.settings.gpu_credit_bytes, static_cast<int>(context.settings.nccl_lanes),
                hosts.launches),
      tuning_log_(context.rank == 0 ? context.settings.tuning_log : "") {}

// Inside a host only a few shards run at once, so that what is under way stays in the caches.
// Between hosts, links need many shards to choose from. Ranks start shards in different orders,
// since they learn of them at different moments. With few shards at once, a rank could be full of
// shards that others have not started, and make all wait.
int Executor::most_at_once() const {
  return several_hosts_ ? Admission::kAnyNumber : tuner_.current().streams;
}

bool Executor::take_over(const TunerFindings& findings) {
  if (!tuner_.take_over(findings)) return false;
  admission_.set_limits(most_at_once(), tuner_.current().credit_bytes);
  tuning_log_.take_over(tuner_);
  return true;
}

void Executor::conclude_trial(uint64_t slowest) {
  if (slowest < Tuner::kNoTime) tuning_log_.add(tuner_, slowest);
  tuner_.conclude(slowest);
  admission_.set_limits(most_at_once(), tuner_.current().credit_bytes);
  if (tuner_.is_finished()) tuning_log_.finish(tuner_);
}

void Executor::note_step(Batch& batch) {
  if (batch.set->id == ProcessSet::kWorld) {
    uint64_t bytes = 0, largest = 0;
    for (const Agreement::Ready& ready : batch.agreed) {
      const auto its = static_cast<uint64_t>(ready.description().bytes());
      bytes += its;
      largest = std::max(largest, its);
    }
    tuner_.note_batch(bytes, largest);
  }
  if (tuner_.is_finished() && !FiniteCheck::is_on(context_.settings)) return;
  fingerprints_.clear();
  for (const Agreement::Ready& ready : batch.agreed) fingerprints_.push_back(fingerprint_of(ready));
  StepCounter& steps = batch.set->steps;
  const bool is_new = steps.note(fingerprints_);
  batch.step = steps.step();
  // The tuner counts the steps of the world, since the world's agreements conclude its trials.
  if (tuner_.is_finished() || batch.set->id != ProcessSet::kWorld) return;
  if (!is_new && bursts_ < kMostBursts) return;
  bursts_ = 0;
  if (admission_.is_idle()) {
    tuner_.end_step();
  } else {
    step_ends_when_idle_ = true;
  }
}

void Executor::note_idle() {
  is_busy_ = false;
  tuner_.record(busy_bytes_, Clock::now() - busy_since_);
  ++bursts_;
  if (std::exchange(step_ends_when_idle_, false)) tuner_.end_step();
}

ShardRun* Executor::new_run() {
  if (free_runs_.empty()) {
    runs_.push_back(std::make_unique<ShardRun>(static_cast<ShardObserver&>(*this)));
    return runs_.back().get();
  }
  ShardRun* run = free_runs_.back();
  free_runs_.pop_back();
  return run;
}

Granularity Executor::granularity(const Batch& batch) const {
  // Tuning moves on with an agreement of the world. An agreement of another set may come before
  // that on one rank and after it on another, so other sets keep the initial values.
  const bool is_tuned = batch.set->id == ProcessSet::kWorld;
  const Tuning& tuning = is_tuned ? tuner_.current() : tuner_.start();
  Granularity granularity;
  granularity.merge_bytes = granularity.gpu_merge_bytes = tuning.merge_bytes;
  granularity.shard_bytes = granularity.gpu_shard_bytes = tuning.shard_bytes;
  granularity.groups_apart = context_.settings.disable_group_fusion;
  const Settings& settings = context_.settings;
  if (settings.gpu_operations != GpuOperations::kStaged) {
    granularity.gpu_merge_bytes = settings.gpu_fusion_bytes;
    granularity.gpu_shard_bytes = settings.gpu_shard_bytes;
  }
  return granularity;
}

bool Executor::takes_turns(const ShardRun& run) const {
  return run.is_of_gpus() && !run.batch->is_joined &&
         context_.settings.gpu_operations != GpuOperations::kStaged &&
         nccl_supports(run.description(), context_.settings);
}

Status Executor::check_gpu(ProcessSet& set, const Operation& operation) const {
  const Settings& settings = context_.settings;
  if (operation.gpu == nullptr || settings.gpu_operations == GpuOperations::kStaged ||
      !nccl_supports(operation.description, settings)) {
    return {};
  }
  if (set.gpu == nullptr) set.gpu = operation.gpu;
  if (set.nccl != nullptr) return set.nccl->check(operation);
  const bool has_nccl = load_cuda(settings.cuda_library_path).nccl.is_usable();
  return has_nccl ? check_same_gpu(operation, *set.gpu) : Status::ok();
}

Status Executor::prepare_gpus(ProcessSet& set, const ShardRun& run) {
  if (set.nccl != nullptr) return {};
  const auto thread = context_.gpus.of(*run.batch->operations[run.shard.operation]->gpu);
  PERSEUS_RETURN_IF_ERROR(thread.status());
  set.nccl = std::make_shared<NcclGroup>(context_.settings, *thread.value(), set);
  CollectiveOptions options = collective_options(run, context_, 0);
  options.operation = operation_tag(set, set.next_series++);
  set.nccl->exchange_capabilities(options);
  return {};
}

void Executor::settle_launches(ProcessSet& set, const Agreement& agreement) {
  launches_.settle(set, agreement);
}

void Executor::run(const std::shared_ptr<Batch>& batch, std::span<const std::byte> inputs) {
  note_step(*batch);
  if (!inputs.empty()) return run_gathered(*batch, inputs);
  planner_.make(batch->agreed, granularity(*batch), batch->plan);
  for (const Shard& shard : batch->plan.shards) {
    for_each_operation(shard, [&](uint32_t operation) {
      if (const OperationPtr& ours = batch->operations[operation]) ours->unfinished_shards += 1;
    });
  }
  for (const OperationPtr& operation : batch->operations) {
    if (operation != nullptr) operation->unlaunched_shards = operation->unfinished_shards;
  }
  for (const OperationPtr& operation : batch->operations) {
    if (operation == nullptr) continue;
    const Status status = allocate_outputs(*operation, batch->set->group.size, batch->set->index);
    if (!status.is_ok()) return fail_batch(*batch, status);
  }
  for (const OperationPtr& operation : batch->operations) {
    if (operation != nullptr && operation->unfinished_shards == 0) {
      hosts_.operations.operation_done(operation, Status::ok());
    }
  }
  hosts_.operations.wake_waiters();

  const uint64_t series = batch->set->next_series++;
  uint32_t index = 0;
  for (const Shard& shard : batch->plan.shards) {
    ShardRun* run = new_run();
    run->batch = batch;
    run->process_set = batch->set->id;
    run->priority = shard.priority;
    run->bytes = shard.bytes;
    run->series = shard.pieces.empty() ? batch->set->next_series++ : series;
    run->index = index++;
    run->shard = shard;
    run->turn = GpuTurn{};
    count(*run);
    if (takes_turns(*run)) {
      in_turn_.push_back(run);
    } else {
      admission_.add(run);
    }
  }
  launch_in_turn(*batch);
  pump();
}

Attachment Executor::attachment(const Operation& operation, int size) {
  const auto input = input_for_agreement(operation, context_, attachment_);
  if (Piggyback::fits(size, input.size())) return {Attachment::Kind::kInput, input};
  return {Attachment::Kind::kSizes, sizes_for_agreement(operation, attachment_)};
}

void Executor::run_gathered(const Batch& batch, std::span<const std::byte> inputs) {
  const Status status = perseus::run_gathered(batch, context_, inputs);
  hosts_.operations.operation_done(batch.operations.front(), status);
  hosts_.operations.wake_waiters();
}

void Executor::launch_in_turn(Batch& batch) {
  if (in_turn_.empty()) return;
  std::vector<ShardRun*> runs;
  runs.swap(in_turn_);
  const Status prepared = prepare_gpus(*batch.set, *runs.front());
  if (prepared.is_ok()) {
    for (ShardRun* run : runs) launches_.add(*run, has_halves(*run, context_.settings));
    for (ShardRun* run : runs) run_in_turn(*run, context_, launches_).start(run);
  } else {
    const Status told = hosts_.shards.shard_failed(prepared);
    for (ShardRun* run : runs) {
      settle(*run, told);
      free_runs_.push_back(run);
    }
  }
  runs.clear();
  in_turn_.swap(runs);  // keeps the memory
}

void Executor::fail_batch(const Batch& batch, const Status& status) {
  const Status told = hosts_.shards.shard_failed(status);
  for (const OperationPtr& operation : batch.operations) {
    if (operation != nullptr) hosts_.operations.operation_done(operation, told);
  }
  hosts_.operations.wake_waiters();
}

void Executor::pump() {
  // A shard that ends at once calls pump() again; the loop below goes on with the next.
  if (pumping_) return;
  pumping_ = true;
  while (Ticket* ticket = admission_.start_next()) {
    auto* run = static_cast<ShardRun*>(ticket);
    trace_shard_begin(context_.timeline, *run);
    if (!std::exchange(is_busy_, true)) {
      busy_since_ = Clock::now();
      busy_bytes_ = 0;
    }
    busy_bytes_ += run->bytes;
    run->streaming = std::max(busy_bytes_, admission_.bytes_unfinished()) > cached_bytes_;
    run_shard(*run, context_).start(run);
  }
  pumping_ = false;
  for (Ticket* ticket : admission_.collect()) free_runs_.push_back(static_cast<ShardRun*>(ticket));
}

void Executor::shard_finished(ShardRun& run, const Status& status) {
  if (run.turn.run != nullptr) return launch_finished(run, status);
  trace_shard_end(context_.timeline, run);
  settle(run, status.is_ok() ? status : hosts_.shards.shard_failed(status));
  admission_.finish(&run);
  if (admission_.is_idle()) note_idle();
  hosts_.shards.shard_ended();
  pump();
}

void Executor::launch_finished(ShardRun& run, const Status& status) {
  const ProcessSetPtr set = run.batch->set;
  settle(run, status.is_ok() ? status : hosts_.shards.shard_failed(status));
  launches_.end(run, *set);
  // A run that has failed before its turn is still in the list of turns, so it is not reused.
  if (run.turn.has_come) free_runs_.push_back(&run);
  hosts_.launches.launch_ended(*set);
  hosts_.shards.shard_ended();
}

void Executor::settle(ShardRun& run, const Status& status) {
  const std::shared_ptr<Batch> batch = std::move(run.batch);
  for_each_operation(run.shard, [&](uint32_t index) {
    const OperationPtr& operation = batch->operations[index];
    if (operation == nullptr) return;
    if (operation->first_error.is_ok()) operation->first_error = status;
    if (--operation->unfinished_shards == 0) {
      const Status ended = outcome(*operation);
      end_error_feedback(*batch, index, context_, ended.is_ok(), run.residual_name);
      hosts_.operations.operation_done(operation, ended);
    }
  });
  hosts_.operations.wake_waiters();
}

Status Executor::outcome(const Operation& operation) {
  if (!operation.first_error.is_ok() || !operation.non_finite) return operation.first_error;
  const NonFinite& found = *operation.non_finite;
  context_.counters.non_finite_reductions.add();
  const std::string text = title(operation.key) + ": " + found.text;
  if (context_.settings.nan_check == NanCheck::kRaise && found.is_agreed) {
    return Status::non_finite(text);
  }
  if (found.is_logged_here && non_finite_lines_ < kMostNonFiniteLines) {
    const bool is_last = ++non_finite_lines_ == kMostNonFiniteLines;
    PERSEUS_LOG(kWarning, text << (is_last ? "; from here on they are only counted" : ""));
  }
  return Status::ok();
}

const Operation* Executor::find_running(int32_t process_set) const {
  for (const auto& run : runs_) {
    if (run->batch == nullptr || run->process_set != process_set) continue;
    for (const OperationPtr& operation : run->batch->operations) {
      if (operation != nullptr && operation->unfinished_shards > 0) return operation.get();
    }
  }
  return nullptr;
}

bool Executor::is_running_after(int32_t process_set, uint64_t round) const {
  return std::ranges::any_of(runs_, [&](const auto& run) {
    return run->batch != nullptr && run->process_set == process_set && run->batch->round > round;
  });
}

void Executor::cancel_waiting(const Status& why) {
  for (Ticket* ticket : admission_.cancel_waiting()) {
    auto* run = static_cast<ShardRun*>(ticket);
    settle(*run, why);
    free_runs_.push_back(run);
  }
}

void Executor::count(const ShardRun& run) {
  Counters& counters = context_.counters;
  counters.shards.add();
  if (run.shard.pieces.size() > 1) counters.merges.add();
  switch (run.description().kind) {
    case OperationKind::kAllreduce:
    case OperationKind::kReduceScatter: return counters.bytes_reduced.add(run.shard.bytes);
    case OperationKind::kBroadcast: return counters.bytes_broadcast.add(run.shard.bytes);
    case OperationKind::kAllgather: return counters.bytes_gathered.add(run.shard.bytes);
    default: return counters.bytes_exchanged.add(run.shard.bytes);
  }
}

}  // namespace perseus
