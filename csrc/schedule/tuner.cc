#include "schedule/tuner.h"

#include <algorithm>

namespace perseus {
namespace {

constexpr size_t kBursts = 7;              // of a trial; their median counts
constexpr uint64_t kSmallest = 256 << 10;  // bytes; smaller bursts tell of latency only
constexpr uint64_t kMiB = 1 << 20;

// A value must win by this much, or noise would decide.
constexpr double kGain = 0.97;

}  // namespace

Tuner::Tuner(Tuning start, TunedDimensions dimensions)
    : dimensions_(dimensions), max_streams_(start.streams), best_(start), current_(start) {
  // The first trial measures what there is.
  if (dimensions.shard_bytes || dimensions.streams || dimensions.merge_bytes) trials_ = {start};
}

void Tuner::record(uint64_t bytes, std::chrono::nanoseconds busy) {
  if (is_finished() || bytes < kSmallest || samples_.size() == kBursts) return;
  samples_.push_back(
      static_cast<uint64_t>(static_cast<double>(busy.count()) * kMiB / static_cast<double>(bytes)));
}

std::optional<uint64_t> Tuner::result() const {
  if (is_finished() || samples_.size() < kBursts) return {};
  std::vector<uint64_t> sorted = samples_;
  std::nth_element(sorted.begin(), sorted.begin() + kBursts / 2, sorted.end());
  return std::max<uint64_t>(sorted[kBursts / 2], 1);
}

void Tuner::conclude(uint64_t slowest) {
  if (is_finished()) return;
  samples_.clear();
  trial_ += 1;
  const bool is_first = best_time_ == UINT64_MAX;
  if (is_first || static_cast<double>(slowest) < kGain * static_cast<double>(best_time_)) {
    best_time_ = slowest;
    best_ = current_;
  }
  trials_.pop_back();
  while (trials_.empty() && dimension_ < 3) begin_dimension();
  current_ = trials_.empty() ? best_ : trials_.back();
}

void Tuner::begin_dimension() {
  const int dimension = dimension_++;
  const auto add = [&](auto change) {
    Tuning candidate = best_;
    change(candidate);
    if (candidate != best_) trials_.push_back(candidate);
  };
  if (dimension == 0 && dimensions_.shard_bytes) {
    for (uint64_t quarter : {16, 8, 2, 1}) {
      add([&](Tuning& t) { t.shard_bytes = quarter * (kMiB / 4); });
    }
  } else if (dimension == 1 && dimensions_.streams) {
    for (int streams = 1; streams <= max_streams_; streams *= 2) {
      add([&](Tuning& t) { t.streams = streams; });
    }
  } else if (dimension == 2 && dimensions_.merge_bytes) {
    for (uint64_t mebibytes : {1, 4, 16}) {
      add([&](Tuning& t) { t.merge_bytes = mebibytes * kMiB; });
    }
  }
}

}  // namespace perseus
