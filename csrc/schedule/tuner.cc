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

Tuner::Tuner(Tuning start, Candidates candidates, TuningEffort effort, WorldShape shape)
    : effort_(effort),
      candidates_(std::move(candidates)),
      shape_(shape),
      start_(start),
      current_(start),
      best_(start),
      steps_to_skip_(effort.warm_up) {
  list_values(start);
  if (values_.empty()) phase_ = Phase::kDone;
}

void Tuner::list_values(const Tuning& from) {
  values_.clear();
  for (const Dimension dimension : kDimensions) {
    const uint64_t first = value_of(from, dimension);
    // The first values are measured early, when a job may not yet run at its usual speed. So they
    // are measured once more.
    const bool is_first = values_.empty();
    const std::vector<uint64_t>& values = candidates(dimension);
    for (const uint64_t value : values) {
      if (value != first || is_first) values_.push_back({dimension, value});
    }
    // A search that begins elsewhere may find that the initial value was better.
    const uint64_t initial = value_of(start_, dimension);
    const bool is_listed = std::ranges::find(values, initial) != values.end();
    if (!values.empty() && initial != first && !is_listed) values_.push_back({dimension, initial});
  }
  values_.resize(std::min(values_.size(), static_cast<size_t>(effort_.most_values)));
}

uint64_t Tuner::value_of(const Tuning& tuning, Dimension dimension) {
  switch (dimension) {
    case Dimension::kShard: return tuning.shard_bytes;
    case Dimension::kStreams: return static_cast<uint64_t>(tuning.streams);
    case Dimension::kMerge: return tuning.merge_bytes;
    case Dimension::kCredit: return tuning.credit_bytes;
    case Dimension::kChunk: return tuning.chunk_bytes;
  }
  return 0;
}

const std::vector<uint64_t>& Tuner::candidates(Dimension dimension) const {
  switch (dimension) {
    case Dimension::kShard: return candidates_.shard_bytes;
    case Dimension::kStreams: return candidates_.streams;
    case Dimension::kMerge: return candidates_.merge_bytes;
    case Dimension::kCredit: return candidates_.credit_bytes;
    default: return candidates_.chunk_bytes;
  }
}

bool Tuner::is_usable(const TunerFindings::Found& found) const {
  if (found.shape.has_several_hosts() != shape_.has_several_hosts()) return false;
  return std::ranges::all_of(kDimensions, [&](Dimension dimension) {
    const uint64_t value = value_of(found.tuning, dimension);
    const std::vector<uint64_t>& values = candidates(dimension);
    return value == value_of(start_, dimension) || std::ranges::find(values, value) != values.end();
  });
}

bool Tuner::take_over(const TunerFindings& findings) {
  if (values_.empty()) return false;
  for (const auto& [work_class, found] : findings.by_class) {
    if (is_usable(found)) found_[work_class] = found;
  }
  const auto last = found_.find(findings.habit.work_class);
  if (last == found_.end() || !findings.habit.is_known()) return false;
  habit_ = findings.habit;
  const auto& [tuning, shape] = last->second;
  if (shape == shape_) {
    work_.resume(habit_);
    keep(tuning);
  } else {
    begin_search(tuning);
  }
  return true;
}

void Tuner::keep(const Tuning& found) {
  phase_ = Phase::kDone;
  current_ = best_ = found;
  steps_ = 0;
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
  habit_ = work_.learn();
  found_[habit_.work_class] = {best_, shape_};
}

void Tuner::begin_again(int work_class) {
  const auto found = found_.find(work_class);
  if (found != found_.end() && found->second.shape == shape_) {
    habit_ = work_.expect(work_class);
    return keep(found->second.tuning);
  }
  habit_ = {};
  begin_search(found == found_.end() ? start_ : found->second.tuning);
}

void Tuner::begin_search(const Tuning& from) {
  list_values(from);
  phase_ = Phase::kFirst;
  current_ = best_ = from;
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
