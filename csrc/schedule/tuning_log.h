// Writes what the tuner tries to a CSV file (PERSEUS_TUNING_LOG). One thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

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
  std::ofstream file_;
};

}  // namespace perseus
