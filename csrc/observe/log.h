// Writes log lines to standard error: "[time] perseus rank 3 WARNING: text". Any thread; lines do
// not mix. Cheap when the level is off: the arguments of PERSEUS_LOG are not evaluated then.
#pragma once

#include <sstream>
#include <string>

#include "base/setting_choices.h"  // LogLevel

namespace perseus {

// level: the least severe level to show. With rank < 0 lines show no rank.
void configure_log(LogLevel level, bool hide_time, int rank);
bool log_enabled(LogLevel level);
void write_log(LogLevel level, const std::string& text);

}  // namespace perseus

// PERSEUS_LOG(kWarning, "rank " << r << " is slow");
#define PERSEUS_LOG(level, stream)                                   \
  do {                                                               \
    if (::perseus::log_enabled(::perseus::LogLevel::level)) {        \
      std::ostringstream line_;                                      \
      line_ << stream;                                               \
      ::perseus::write_log(::perseus::LogLevel::level, line_.str()); \
    }                                                                \
  } while (0)
