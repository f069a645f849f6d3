// Writes what the tuner tries to a CSV file (PERSEUS_TUNING_LOG). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "schedule/tuner.h"

namespace perseus {

class TuningLog {
 public:
  // `path`: empty for no file.
  explicit TuningLog(const std::string& path);

  // Writes the values that the tuner has taken over from an earlier world, in the engine's log too.
  void take_over(const Tuner& tuner);
  // Call before the trial is concluded. `slowest`: the slowest rank's time in ns per MiB.
  void add(const Tuner& tuner, uint64_t slowest);
  // Writes the values that the tuner keeps, in the engine's log too.
  void finish(const Tuner& tuner);

 private:
  void write_settled(std::string_view what, const Tuner& tuner);
  // A file that cannot be written ends the log, and nothing else.
  void write(std::string_view line);

  std::string path_;
  FileDescriptor file_;
};

}  // namespace perseus
