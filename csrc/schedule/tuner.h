// Finds, in the first steps of a job, the number of streams, the granularities and the credit that
// move its tensors fastest, and then keeps them.
//
// It searches one dimension after the other, with a short trial of each value. Then a duel decides:
// the values that the search has found and the initial ones take turns. Unless the new ones are
// clearly faster, the initial ones are kept. So noise in the search can cost some of the gain, but
// hardly ever makes a job slower than it was.
//
// A trial lasts a few training steps; the step in which it begins does not count. A value that
// makes the first step far slower is given up after it. Every rank measures. All ranks move to the
// next trial in the same round of agreement, and the slowest rank's time is the trial's result. So
// all ranks always plan with the same values.
//
// If the job later moves tensors of another size, it tunes again from the initial values, or takes
// what it has found for such work before; see WorkWatch.
//
// What it has found outlives the world. In a world of the same shape the next tuner takes it as it
// is. In one with more or fewer ranks the next search begins there, and takes no longer than the
// first one. That a job has more than one host, or no longer has, makes other values the fastest
// ones, so then the next tuner begins from nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "schedule/tuning.h"
#include "schedule/work_watch.h"

namespace perseus {

struct Settings;

// The values to try of each dimension, in this order. Empty for a dimension that the user has set,
// or that makes no difference.
struct Candidates {
  std::vector<uint64_t> shard_bytes, streams, merge_bytes, credit_bytes, chunk_bytes;

  // For ranks that are all on one host: at most as many streams as at the start. Credit and chunk
  // are not tried: so few shards do not use up the credit, and the rings of shared memory limit the
  // size of frames.
  static Candidates inside_a_host(const Tuning& start);
  // For ranks on several hosts. A stream there is one of `connections` connections, and the credit
  // alone limits the shards. Chunks can only become smaller: buffers are made for the initial size.
  static Candidates between_hosts(const Tuning& start, int connections);
};

// How long to search. With the settings' defaults it takes sixty steps at most.
struct TuningEffort {
  int steps = 0;        // of a trial
  int warm_up = 0;      // steps before the first trial
  int most_values = 0;  // to try

  static TuningEffort from(const Settings& settings);
};

// Pure logic: times come in, no clock inside. One thread.
class Tuner {
 public:
  // The result of a rank that has had nothing but small steps. Tuning ends with the initial values.
  static constexpr uint64_t kNothingToMeasure = UINT64_MAX;
  // The least of the results that are no time.
  static constexpr uint64_t kNoTime = UINT64_MAX - 8;

  Tuner(Tuning start, Candidates candidates, TuningEffort effort, WorldShape shape = {});

  // Goes on from what was found in an earlier world, without the values that this tuner could not
  // find itself. Returns whether current() is from there. Call before anything else, with the same
  // findings on all ranks.
  bool take_over(const TunerFindings& findings);
  // What to take over in the next world.
  TunerFindings findings() const { return {found_, habit_}; }

  // The values to use now.
  const Tuning& current() const { return current_; }
  const Tuning& start() const { return start_; }
  bool is_finished() const { return phase_ == Phase::kDone; }
  int trial() const { return trial_; }
  // How many training steps it has taken for the values of the work of now; 0 if they were known.
  int steps() const { return steps_; }

  // Operations were agreed on at once: their bytes, and those of the largest.
  void note_batch(uint64_t bytes, uint64_t largest) { work_.note_batch(bytes, largest); }
  // Moving `bytes` took `busy`, from one idle moment to the next.
  void record(uint64_t bytes, std::chrono::nanoseconds busy);
  // A training step is over. All that was recorded since the last call belongs to it.
  void end_step();
  // Nanoseconds per MiB in this trial, once enough was measured, or kNothingToMeasure. After the
  // last trial, that the work has changed, once it has.
  std::optional<uint64_t> result() const;
  // All ranks have measured this trial; the slowest took `slowest` nanoseconds per MiB.
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

  // The result that says that work is of a class now.
  static uint64_t work_of(int work_class) { return kNoTime + static_cast<uint64_t>(work_class); }

  static uint64_t value_of(const Tuning& tuning, Dimension dimension);
  const std::vector<uint64_t>& candidates(Dimension dimension) const;
  // Returns whether this tuner might have found these values.
  bool is_usable(const TunerFindings::Found& found) const;

  // Lists the values to try in a search that begins from `from`.
  void list_values(const Tuning& from);
  // Sets current_ to the values to measure next, or at the end to those that are kept.
  void choose_next();
  bool has_won_duel();
  // Returns whether the first step of a trial leaves no hope that its value is faster.
  bool is_hopeless() const;
  void finish();
  // Tunes for work of another class.
  void begin_again(int work_class);
  void begin_search(const Tuning& from);
  // Uses what was found, without a search.
  void keep(const Tuning& found);

  static constexpr Dimension kDimensions[] = {Dimension::kShard, Dimension::kStreams,
                                              Dimension::kMerge, Dimension::kCredit,
                                              Dimension::kChunk};
  const TuningEffort effort_;
  const Candidates candidates_;
  const WorldShape shape_;
  const Tuning start_;
  Phase phase_ = Phase::kFirst;
  Tuning current_;
  int trial_ = 0;
  // The search.
  std::vector<Value> values_;  // to try
  size_t tried_ = 0;
  Tuning best_;
  uint64_t best_time_ = UINT64_MAX;
  // The duel: times of start_ and of best_.
  std::vector<uint64_t> start_times_, best_times_;
  // The work that the values are for, and what was found for others, by class.
  WorkWatch work_;
  std::map<int, TunerFindings::Found> found_;
  WorkHabit habit_;
  // The trial.
  int steps_ = 0;
  int small_steps_ = 0;  // in a row
  int steps_to_skip_;
  uint64_t step_bytes_ = 0;
  std::chrono::nanoseconds step_time_{0};
  std::vector<uint64_t> samples_;  // nanoseconds per MiB
};

}  // namespace perseus
