// Finds, in the first steps of a job, how many streams, which granularities and how much credit
// move its tensors fastest, and then keeps them. One dimension after the other climbs a ladder of
// values, upwards first, as long as that is faster (coordinate descent).
//
// A trial lasts a few training steps; the one in which it begins does not count. Every rank
// measures, and all move to the next trial in the same round of agreement, with the time of the
// slowest rank as the verdict; so all ranks always plan with the same values.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace perseus {

struct Tuning {
  int streams = 4;
  uint64_t shard_bytes = 1 << 20;
  uint64_t merge_bytes = 4 << 20;
  uint64_t credit_bytes = 16 << 20;
  uint64_t chunk_bytes = 128 << 10;
  bool operator==(const Tuning&) const = default;
};

// What may be changed: not what the user has chosen, nor what makes no difference here.
struct TunedDimensions {
  bool shard_bytes = true;
  bool streams = true;  // downwards only: the setting is the most
  bool merge_bytes = true;
  bool credit_bytes = true;
  bool chunk_bytes = true;  // downwards only: buffers are made for the setting's size
};

// How long to look.
struct TuningEffort {
  int steps = 4;         // of a trial
  int warm_up = 3;       // steps before the first trial
  int most_trials = 12;  // after the first
};

// Pure logic: times come in, no clock inside. One thread.
class Tuner {
 public:
  Tuner(Tuning start, TunedDimensions dimensions, TuningEffort effort);

  // What is to be used now.
  const Tuning& current() const { return current_; }
  bool is_finished() const { return dimension_ == kDimensions; }
  int trial() const { return trial_; }

  // Work of `bytes` took `busy`, from idle to idle.
  void record(uint64_t bytes, std::chrono::nanoseconds busy);
  // What was recorded since the last call was a training step's.
  void end_step();
  // Nanoseconds a MiB of this trial, once enough was measured.
  std::optional<uint64_t> result() const;
  // All ranks have measured this trial; the slowest took `slowest` nanoseconds a MiB.
  void conclude(uint64_t slowest);

 private:
  static constexpr int kDimensions = 5;
  struct Ladder {
    std::vector<uint64_t> values;  // ascending
    size_t at = 0;                 // the best known
    bool has_gained = false;       // upwards: then downwards is not tried
    int direction = 1;
  };
  static uint64_t value(const Tuning& tuning, int dimension);
  static Tuning with(Tuning tuning, int dimension, uint64_t value);

  // Sets current_ to what is to be tried next, or to the best if that was all.
  void choose_next();

  const TuningEffort effort_;
  std::array<Ladder, kDimensions> ladders_;  // of one value: the dimension is not tuned
  Tuning best_;
  uint64_t best_time_ = UINT64_MAX;
  Tuning current_;
  int trial_ = 0;
  int dimension_ = -1;  // -1: the first trial measures what there is
  int steps_to_skip_;
  uint64_t step_bytes_ = 0;
  std::chrono::nanoseconds step_time_{0};
  std::vector<uint64_t> samples_;  // of the current trial, nanoseconds a MiB
};

}  // namespace perseus
