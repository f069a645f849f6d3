// A timeline in Chrome's trace format (chrome://tracing, Perfetto), with Horovod's vocabulary: one
// row ("process") for each tensor, with NEGOTIATE_ALLREDUCE while ranks agree, then ALLREDUCE,
// which contains QUEUE, PACK, each stream's shards and UNPACK. A thread of its own writes the file,
// and sleeps when there is nothing to write.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

// Any thread. While no file is open, every call is one relaxed load and a branch.
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;

  // Opens and empties the file, after ending one that is being written already. Returns
  // kInvalidArgument, and changes nothing, if the path cannot be written.
  Status start(const std::string& path, bool mark_cycles);
  // Writes what is pending and closes the file, which is then valid JSON. (If the process dies, the
  // file holds all events except those of the last moments, and lacks only the closing bracket,
  // which viewers do not need.)
  void stop();
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // Activities of one tensor, which may nest. With `lane` < 0 they go to the tensor's own row, else
  // to the tensor's row for that stream. `args` is the text of a JSON object, or empty:
  // {"dtype": "float32", "shape": "[3, 4]"}.
  void begin(std::string_view tensor, std::string_view activity, int lane = -1,
             std::string_view args = {}) {
    if (enabled()) record(Phase::kBegin, tensor, activity, lane, args);
  }
  // Leaves out an end without a beginning in this file, as after a start in the middle of an
  // operation.
  void end(std::string_view tensor, int lane = -1) {
    if (enabled()) record(Phase::kEnd, tensor, {}, lane, {});
  }
  // An instant event on the tensor's row or, with no tensor, on the common row ("CYCLE_START").
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
