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

  // Call before the trial is concluded. `slowest`: the slowest rank's time in ns per MiB.
  void add(const Tuner& tuner, uint64_t slowest);
  // Writes the values that the tuner keeps, in the engine's log too.
  void finish(const Tuner& tuner);

 private:
  // A file that cannot be written ends the log, and nothing else.
  void write(std::string_view line);

  std::string path_;
  FileDescriptor file_;
};

}  // namespace perseus
