// Finds, in the first steps of a job, how many streams and which granularities move its tensors
// fastest, and then keeps them. One dimension after the other: each value is tried for some bursts
// of work, and the fastest stays (coordinate descent).
//
// Every rank measures, and all move to the next trial in the same round of agreement, with the time
// of the slowest rank as the verdict; so all ranks always plan with the same values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace perseus {

struct Tuning {
  int streams = 4;
  uint64_t shard_bytes = 1 << 20;
  uint64_t merge_bytes = 4 << 20;
  bool operator==(const Tuning&) const = default;
};

// What may be changed. A value that the user has chosen is not.
struct TunedDimensions {
  bool shard_bytes = true;
  bool streams = true;  // downwards only: there are connections for as many as were asked for
  bool merge_bytes = true;
};

// Pure logic: times come in, no clock inside. One thread.
class Tuner {
 public:
  Tuner(Tuning start, TunedDimensions dimensions);

  // What is to be used now.
  const Tuning& current() const { return current_; }
  bool is_finished() const { return trials_.empty(); }
  int trial() const { return trial_; }

  // Work of `bytes` took `busy`, from idle to idle.
  void record(uint64_t bytes, std::chrono::nanoseconds busy);
  // Nanoseconds a MiB of this trial, once enough was measured.
  std::optional<uint64_t> result() const;
  // All ranks have measured this trial; the slowest took `slowest` nanoseconds a MiB.
  void conclude(uint64_t slowest);

 private:
  void begin_dimension();

  const TunedDimensions dimensions_;
  const int max_streams_;
  Tuning best_;
  uint64_t best_time_ = UINT64_MAX;
  Tuning current_;
  int trial_ = 0;
  int dimension_ = 0;
  std::vector<Tuning> trials_;     // still to be tried in this dimension; the last is current
  std::vector<uint64_t> samples_;  // of the current trial, nanoseconds a MiB
};

}  // namespace perseus
