#include "schedule/tuner.h"

#include <algorithm>
#include <utility>

#include "base/settings.h"

namespace perseus {
namespace {

// Bytes of a step. The time of a smaller step says something about latency only.
constexpr uint64_t kSmallestStep = 256 << 10;
constexpr int kMostSmallSteps = 500;  // in a row, after which there is nothing to tune
constexpr uint64_t kMiB = 1 << 20;

constexpr size_t kRounds = 3;  // of the duel

// A step that takes so many times the best time so far ends a trial. Less may be a disturbance.
constexpr double kHopeless = 1.5;

// A smaller difference does not count.
bool is_faster(uint64_t time, uint64_t than) {
  return static_cast<double>(time) < 0.98 * static_cast<double>(than);
}

}  // namespace

Tuning Tuning::from(const Settings& settings) {
  return {.streams = static_cast<int>(settings.streams),
          .shard_bytes = settings.shard_bytes,
          .merge_bytes = settings.fusion_bytes,
          .credit_bytes = settings.credit_bytes,
          .chunk_bytes = settings.chunk_bytes};
}

TuningEffort TuningEffort::from(const Settings& settings) {
  return {.steps = static_cast<int>(settings.tuning_steps),
          .warm_up = static_cast<int>(settings.tuning_warm_up),
          .most_values = static_cast<int>(settings.tuning_trials)};
}

Candidates Candidates::inside_a_host(const Tuning& start) {
  const auto most = static_cast<uint64_t>(start.streams);
  std::vector<uint64_t> streams = {1, 2, 4};
  std::erase_if(streams, [&](uint64_t fewer) { return fewer >= most; });
  streams.push_back(most);
  return {.shard_bytes = {kMiB / 4, kMiB / 2, kMiB, 4 * kMiB},
          .streams = std::move(streams),
          .merge_bytes = {kMiB / 4, kMiB / 2, 2 * kMiB},
          .credit_bytes = {},
          .chunk_bytes = {}};
}

Candidates Candidates::between_hosts(const Tuning& start, int connections) {
  std::vector<uint64_t> streams = {2, 4, 8};
  std::erase_if(streams, [&](uint64_t more) { return more > static_cast<uint64_t>(connections); });
  return {.shard_bytes = {kMiB / 2, kMiB, 4 * kMiB},
          .streams = std::move(streams),
          .merge_bytes = {kMiB / 2, 4 * kMiB},
          .credit_bytes = {16 * kMiB, 64 * kMiB},
          .chunk_bytes = {start.chunk_bytes / 4, start.chunk_bytes}};
}

Tuner::Tuner(Tuning start, const Candidates& candidates, TuningEffort effort)
    : effort_(effort),
      start_(start),
      current_(start),
      best_(start),
      steps_to_skip_(effort.warm_up) {
  add(Dimension::kShard, start.shard_bytes, candidates.shard_bytes);
  add(Dimension::kStreams, static_cast<uint64_t>(start.streams), candidates.streams);
  add(Dimension::kMerge, start.merge_bytes, candidates.merge_bytes);
  add(Dimension::kCredit, start.credit_bytes, candidates.credit_bytes);
  add(Dimension::kChunk, start.chunk_bytes, candidates.chunk_bytes);
  values_.resize(std::min(values_.size(), static_cast<size_t>(effort.most_values)));
  if (values_.empty()) phase_ = Phase::kDone;
}

void Tuner::add(Dimension dimension, uint64_t start, const std::vector<uint64_t>& values) {
  // The initial values are measured early, when a job may not yet run at its usual speed. So they
  // are measured once more.
  const bool is_first = values_.empty();
  for (uint64_t value : values) {
    if (value != start || is_first) values_.push_back({dimension, value});
  }
}

Tuning Tuner::with(Tuning tuning, const Value& value) {
  switch (value.dimension) {
    case Dimension::kShard: tuning.shard_bytes = value.value; break;
    case Dimension::kStreams: tuning.streams = static_cast<int>(value.value); break;
    case Dimension::kMerge: tuning.merge_bytes = value.value; break;
    case Dimension::kCredit: tuning.credit_bytes = value.value; break;
    case Dimension::kChunk: tuning.chunk_bytes = value.value; break;
  }
  return tuning;
}

void Tuner::record(uint64_t bytes, std::chrono::nanoseconds busy) {
  step_bytes_ += bytes;
  step_time_ += busy;
}

void Tuner::end_step() {
  const uint64_t bytes = step_bytes_;
  const auto time = static_cast<double>(step_time_.count());
  step_bytes_ = 0;
  step_time_ = {};
  work_.note_step();
  if (is_finished()) return;
  ++steps_;
  small_steps_ = bytes < kSmallestStep ? small_steps_ + 1 : 0;
  if (bytes < kSmallestStep) return;
  if (steps_to_skip_ > 0) {
    --steps_to_skip_;
  } else if (samples_.size() < static_cast<size_t>(effort_.steps)) {
    samples_.push_back(static_cast<uint64_t>(time * kMiB / static_cast<double>(bytes)));
  }
}

bool Tuner::is_hopeless() const {
  return phase_ == Phase::kSearch && !samples_.empty() &&
         static_cast<double>(samples_.front()) > kHopeless * static_cast<double>(best_time_);
}

std::optional<uint64_t> Tuner::result() const {
  if (is_finished()) {
    const auto changed = work_.changed();
    if (!changed || values_.empty()) return {};
    return work_of(*changed);
  }
  if (small_steps_ >= kMostSmallSteps) return kNothingToMeasure;
  if (samples_.size() < static_cast<size_t>(effort_.steps) && !is_hopeless()) return {};
  // A disturbance can only make a step longer.
  return std::max<uint64_t>(*std::min_element(samples_.begin(), samples_.end()), 1);
}

void Tuner::conclude(uint64_t slowest) {
  trial_ += 1;
  if (is_finished()) {
    if (slowest != kNothingToMeasure) begin_again(static_cast<int>(slowest - kNoTime));
    return;
  }
  samples_.clear();
  steps_to_skip_ = 1;  // the next step belongs partly to the trial before
  if (slowest == kNothingToMeasure) {
    best_ = start_;
    return finish();
  }
  switch (phase_) {
    case Phase::kFirst:
      best_time_ = slowest;
      phase_ = Phase::kSearch;
      break;
    case Phase::kSearch:
      if (current_ == best_) {
        best_time_ = std::min(best_time_, slowest);
      } else if (is_faster(slowest, best_time_)) {
        best_time_ = slowest;
        best_ = current_;
      }
      break;
    default: (current_ == best_ ? best_times_ : start_times_).push_back(slowest);
  }
  choose_next();
}

void Tuner::choose_next() {
  if (phase_ == Phase::kSearch) {
    if (tried_ < values_.size()) {
      current_ = with(best_, values_[tried_++]);
      return;
    }
    if (best_ == start_) return finish();
    phase_ = Phase::kDuel;
  }
  if (best_times_.size() < kRounds) {
    current_ = start_times_.size() == best_times_.size() ? start_ : best_;
    return;
  }
  if (!has_won_duel()) best_ = start_;
  finish();
}

void Tuner::finish() {
  phase_ = Phase::kDone;
  current_ = best_;
  found_[work_.learn()] = best_;
}

void Tuner::begin_again(int work_class) {
  if (const auto found = found_.find(work_class); found != found_.end()) {
    current_ = found->second;
    steps_ = 0;
    return work_.expect(work_class);
  }
  phase_ = Phase::kFirst;
  current_ = best_ = start_;
  best_time_ = UINT64_MAX;
  tried_ = 0;
  start_times_.clear();
  best_times_.clear();
  samples_.clear();
  steps_ = small_steps_ = 0;
  steps_to_skip_ = effort_.warm_up;
  work_.begin();
}

bool Tuner::has_won_duel() {
  std::sort(start_times_.begin(), start_times_.end());
  std::sort(best_times_.begin(), best_times_.end());
  // Either may happen by luck; both at once hardly ever do.
  return is_faster(best_times_.front(), start_times_.front()) &&
         is_faster(best_times_[kRounds / 2], start_times_[kRounds / 2]);
}

}  // namespace perseus
