// Chrome-trace timeline (chrome://tracing, Perfetto), with Horovod's vocabulary: one row
// ("process") a tensor, NEGOTIATE_ALLREDUCE while ranks agree, then ALLREDUCE with QUEUE, PACK,
// each stream's shards and UNPACK inside. A thread of its own writes the file, asleep when there is
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

// Any thread. Every call is one relaxed load and a branch while no file is open.
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;

  // Opens the file, emptying it; one that is being written already is ended first. A path that
  // cannot be written is kInvalidArgument, and leaves things as they were.
  Status start(const std::string& path, bool mark_cycles);
  // Writes what is pending and closes; the file is valid JSON. (It is also valid, but for the
  // closing bracket, which viewers do not need, when the process dies: what is older than a
  // moment is in the file.)
  void stop();
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // Nested activities of one tensor. `lane` < 0 is the tensor's own row, else a row for that stream
  // of the tensor. `args` is JSON object text or empty: {"dtype": "float32", "shape": "[3, 4]"}.
  void begin(std::string_view tensor, std::string_view activity, int lane = -1,
             std::string_view args = {}) {
    if (enabled()) record(Phase::kBegin, tensor, activity, lane, args);
  }
  // An end without a beginning in this file, as after a start in mid-operation, is left out.
  void end(std::string_view tensor, int lane = -1) {
    if (enabled()) record(Phase::kEnd, tensor, {}, lane, {});
  }
  // A moment, on the tensor's row; tensor empty: on a row of all ("CYCLE_START").
  void instant(std::string_view tensor, std::string_view what) {
    if (enabled()) record(Phase::kInstant, tensor, what, -1, {});
  }
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : char { kBegin = 'B', kEnd = 'E', kInstant = 'i' };
  void record(Phase phase, std::string_view tensor, std::string_view activity, int lane,
              std::string_view args);

  struct Impl;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> marks_cycles_{false};
  std::unique_ptr<Impl> impl_;
};

}  // namespace perseus
