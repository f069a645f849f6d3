// Chrome-trace timeline (chrome://tracing, Perfetto), with Horovod's vocabulary: one row ("process")
// a tensor, NEGOTIATE_ALLREDUCE while ranks agree, then ALLREDUCE with QUEUE, PACK, each stream's
// shards and UNPACK inside. A thread of its own writes the file, asleep when there is nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

// Any thread. Every call is a load and a branch while no file is open.
class Timeline {
 public:
  Timeline();
  ~Timeline();

  Status start(const std::string& path, bool mark_cycles);
  // Writes what is pending and closes; the file is valid JSON. (It is also valid, but for the
  // closing bracket, which viewers do not need, when the process dies.)
  void stop();
  bool enabled() const;

  // Nested activities of one tensor. `lane` < 0 is the tensor's own row, else a row for that stream
  // of the tensor. `args` is JSON object text or empty: {"dtype": "float32", "shape": "[3, 4]"}.
  void begin(std::string_view tensor, std::string_view activity, int lane = -1,
             std::string_view args = {});
  void end(std::string_view tensor, int lane = -1);
  // A moment, on the tensor's row; tensor empty: on a row of all ("CYCLE_START").
  void instant(std::string_view tensor, std::string_view what);
  bool marks_cycles() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perseus
