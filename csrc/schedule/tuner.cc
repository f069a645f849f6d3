#include "schedule/tuner.h"

#include <algorithm>

namespace perseus {
namespace {

constexpr uint64_t kSmallest = 256 << 10;  // bytes of a step; smaller ones tell of latency only
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kKiB = 1 << 10;

// A value must win by this much, or noise would decide.
constexpr double kGain = 0.97;

// In the order in which they are tuned.
enum Dimension { kShard, kStreams, kMerge, kCredit, kChunk };

// The values, with `start` among them.
std::vector<uint64_t> ladder_of(uint64_t start, std::vector<uint64_t> values) {
  if (std::find(values.begin(), values.end(), start) == values.end()) values.push_back(start);
  std::sort(values.begin(), values.end());
  return values;
}

// From `start` down by halves, `count` of them at most.
std::vector<uint64_t> halves_of(uint64_t start, int count) {
  std::vector<uint64_t> values;
  for (; start != 0 && count > 0; start /= 2, --count) values.insert(values.begin(), start);
  return values;
}

}  // namespace

Tuner::Tuner(Tuning start, TunedDimensions dimensions, TuningEffort effort)
    : effort_(effort), best_(start), current_(start), steps_to_skip_(effort.warm_up) {
  if (dimensions.shard_bytes) {
    ladders_[kShard].values = ladder_of(start.shard_bytes, {kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB});
  }
  if (dimensions.streams) {
    ladders_[kStreams].values = halves_of(static_cast<uint64_t>(start.streams), 8);
  }
  if (dimensions.merge_bytes) {
    ladders_[kMerge].values = ladder_of(start.merge_bytes, {kMiB, 4 * kMiB, 16 * kMiB});
  }
  if (dimensions.credit_bytes) {
    ladders_[kCredit].values = ladder_of(start.credit_bytes, {4 * kMiB, 16 * kMiB, 64 * kMiB});
  }
  if (dimensions.chunk_bytes) ladders_[kChunk].values = halves_of(start.chunk_bytes, 3);
  bool is_any = false;
  for (int i = 0; i < kDimensions; ++i) {
    Ladder& ladder = ladders_[i];
    if (ladder.values.empty()) ladder.values = {value(start, i)};
    const auto at = std::find(ladder.values.begin(), ladder.values.end(), value(start, i));
    ladder.at = static_cast<size_t>(at - ladder.values.begin());
    is_any |= ladder.values.size() > 1;
  }
  if (!is_any || effort.most_trials == 0) dimension_ = kDimensions;
}

uint64_t Tuner::value(const Tuning& tuning, int dimension) {
  switch (dimension) {
    case kShard: return tuning.shard_bytes;
    case kStreams: return static_cast<uint64_t>(tuning.streams);
    case kMerge: return tuning.merge_bytes;
    case kCredit: return tuning.credit_bytes;
    default: return tuning.chunk_bytes;
  }
}

Tuning Tuner::with(Tuning tuning, int dimension, uint64_t value) {
  switch (dimension) {
    case kShard: tuning.shard_bytes = value; break;
    case kStreams: tuning.streams = static_cast<int>(value); break;
    case kMerge: tuning.merge_bytes = value; break;
    case kCredit: tuning.credit_bytes = value; break;
    default: tuning.chunk_bytes = value;
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
  if (is_finished() || bytes < kSmallest) return;
  if (steps_to_skip_ > 0) {
    --steps_to_skip_;
  } else if (samples_.size() < static_cast<size_t>(effort_.steps)) {
    samples_.push_back(static_cast<uint64_t>(time * kMiB / static_cast<double>(bytes)));
  }
}

std::optional<uint64_t> Tuner::result() const {
  if (is_finished() || samples_.size() < static_cast<size_t>(effort_.steps)) return {};
  // What disturbs a step only ever makes it longer.
  std::vector<uint64_t> sorted = samples_;
  const auto typical = sorted.begin() + static_cast<ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), typical, sorted.end());
  return std::max<uint64_t>(*typical, 1);
}

void Tuner::conclude(uint64_t slowest) {
  if (is_finished()) return;
  samples_.clear();
  steps_to_skip_ = 1;  // partly of the trial before
  trial_ += 1;
  const bool gains = static_cast<double>(slowest) < kGain * static_cast<double>(best_time_);
  if (dimension_ < 0) {
    best_time_ = slowest;
    dimension_ = 0;
  } else {
    Ladder& ladder = ladders_[dimension_];
    if (gains) {
      best_time_ = slowest;
      best_ = current_;
      ladder.at += static_cast<size_t>(ladder.direction);
      ladder.has_gained = true;
    } else if (ladder.direction > 0 && !ladder.has_gained) {
      ladder.direction = -1;
    } else {
      ++dimension_;
    }
  }
  choose_next();
}

void Tuner::choose_next() {
  if (trial_ > effort_.most_trials) dimension_ = kDimensions;
  while (!is_finished()) {
    Ladder& ladder = ladders_[dimension_];
    const bool is_top = ladder.at + 1 == ladder.values.size();
    if (ladder.direction > 0 && is_top && !ladder.has_gained) ladder.direction = -1;
    if (ladder.direction > 0 ? !is_top : ladder.at != 0) {
      const size_t next = ladder.at + static_cast<size_t>(ladder.direction);
      current_ = with(best_, dimension_, ladder.values[next]);
      return;
    }
    ++dimension_;
  }
  current_ = best_;
}

}  // namespace perseus
