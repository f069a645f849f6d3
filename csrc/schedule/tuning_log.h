// What the tuner has tried, as CSV for whoever wants to see it. One thread.
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

  // The trial that is about to be concluded, and the time of the slowest rank in ns a MiB.
  void add(const Tuner& tuner, uint64_t slowest);
  // What the tuner keeps; says so in the log too.
  void finish(const Tuner& tuner);

 private:
  std::ofstream file_;
};

}  // namespace perseus
