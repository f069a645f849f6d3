// Finds, in the first steps of a job, how many streams, which granularities and how much credit
// move its tensors fastest, and then keeps them.
//
// It searches one dimension after the other, with a short trial of each value. Then a duel decides:
// what the search has found and the settings that there were take turns, and unless the new ones
// win clearly, the old ones stay. So noise in the search can cost some of the gain, but hardly ever
// makes a job slower than it was.
//
// A trial lasts a few training steps; the one in which it begins does not count. Every rank
// measures, and all move to the next trial in the same round of agreement, with the time of the
// slowest rank as the verdict; so all ranks always plan with the same values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/settings.h"

namespace perseus {

struct Tuning {
  int streams = 0;
  uint64_t shard_bytes = 0;
  uint64_t merge_bytes = 0;
  uint64_t credit_bytes = 0;
  uint64_t chunk_bytes = 0;

  static Tuning from(const Settings& settings);
  bool operator==(const Tuning&) const = default;
};

// What is tried of each dimension, in this order; nothing of what the user has chosen, or of what
// makes no difference.
struct Candidates {
  std::vector<uint64_t> shard_bytes, streams, merge_bytes, credit_bytes, chunk_bytes;

  // Where all ranks are on one host: fewer shards under way than the start's, whatever the credit,
  // and rings bound the frames.
  static Candidates inside_a_host(const Tuning& start);
  // Streams are connections there, of which there are `connections`; the credit alone bounds the
  // shards. Smaller chunks only: buffers are made for the start's.
  static Candidates between_hosts(const Tuning& start, int connections);
};

// How long to look. With the settings' defaults, fifty steps at most.
struct TuningEffort {
  int steps = 0;        // of a trial
  int warm_up = 0;      // steps before the first trial
  int most_values = 0;  // tried

  static TuningEffort from(const Settings& settings);
};

// Pure logic: times come in, no clock inside. One thread.
class Tuner {
 public:
  // The verdict of a rank that has had nothing but small steps: tuning ends, the start is kept.
  static constexpr uint64_t kNothingToMeasure = UINT64_MAX;

  Tuner(Tuning start, const Candidates& candidates, TuningEffort effort);

  // What is to be used now.
  const Tuning& current() const { return current_; }
  const Tuning& start() const { return start_; }
  bool is_finished() const { return phase_ == Phase::kDone; }
  int trial() const { return trial_; }
  // Training steps so far, all of them.
  int steps() const { return steps_; }

  // Work of `bytes` took `busy`, from idle to idle.
  void record(uint64_t bytes, std::chrono::nanoseconds busy);
  // What was recorded since the last call was a training step's.
  void end_step();
  // Nanoseconds a MiB of this trial once enough was measured, or kNothingToMeasure.
  std::optional<uint64_t> result() const;
  // All ranks have measured this trial; the slowest took `slowest` nanoseconds a MiB.
  void conclude(uint64_t slowest);

 private:
  enum class Phase { kFirst, kSearch, kDuel, kDone };
  // In the order in which they are tuned.
  enum class Dimension { kShard, kStreams, kMerge, kCredit, kChunk };
  struct Value {
    Dimension dimension;
    uint64_t value;
  };
  static Tuning with(Tuning tuning, const Value& value);

  void add(Dimension dimension, uint64_t start, const std::vector<uint64_t>& values);
  // Sets current_ to what is to be measured next, or to what is kept if that was all.
  void choose_next();
  bool has_won_duel();

  const TuningEffort effort_;
  const Tuning start_;
  Phase phase_ = Phase::kFirst;
  Tuning current_;
  int trial_ = 0;
  // The search.
  std::vector<Value> values_;  // to be tried
  size_t tried_ = 0;
  Tuning best_;
  uint64_t best_time_ = UINT64_MAX;
  // The duel: times of start_ and of best_.
  std::vector<uint64_t> start_times_, best_times_;
  // The trial.
  int steps_ = 0;
  int small_steps_ = 0;  // in a row
  int steps_to_skip_;
  uint64_t step_bytes_ = 0;
  std::chrono::nanoseconds step_time_{0};
  std::vector<uint64_t> samples_;  // nanoseconds a MiB
};

}  // namespace perseus
