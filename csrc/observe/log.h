// Log lines to standard error: "[time] perseus rank 3 WARNING: text". Any thread; a line is written
// whole. Cheap when the level is off: arguments of PERSEUS_LOG are not evaluated.
#pragma once

#include <sstream>
#include <string>

#include "base/setting_choices.h"  // LogLevel

namespace perseus {

// level: least severe that is shown. rank < 0 leaves the rank out.
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
