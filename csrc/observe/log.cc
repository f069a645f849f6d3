#include "observe/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace perseus {
namespace {

std::atomic<LogLevel> least_level{LogLevel::kWarning};
std::atomic<bool> time_hidden{false};
std::atomic<int> own_rank{-1};

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace: return "TRACE";
    case LogLevel::kDebug: return "DEBUG";
    case LogLevel::kInfo: return "INFO";
    case LogLevel::kWarning: return "WARNING";
    case LogLevel::kError: return "ERROR";
    case LogLevel::kFatal: return "FATAL";
  }
  return "";
}

// "[2026-01-31 12:34:56.789] "
std::string time_text() {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm parts{};
  localtime_r(&now.tv_sec, &parts);
  char date[32];
  strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &parts);
  char text[48];
  snprintf(text, sizeof(text), "[%s.%03d] ", date, static_cast<int>(now.tv_usec / 1000));
  return text;
}

}  // namespace

void configure_log(LogLevel level, bool hide_time, int rank) {
  least_level.store(level, std::memory_order_relaxed);
  time_hidden.store(hide_time, std::memory_order_relaxed);
  own_rank.store(rank, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) { return level >= least_level.load(std::memory_order_relaxed); }

void write_log(LogLevel level, const std::string& text) {
  std::string line;
  if (!time_hidden.load(std::memory_order_relaxed)) line += time_text();
  line += "perseus ";
  if (int rank = own_rank.load(std::memory_order_relaxed); rank >= 0) {
    line += "rank " + std::to_string(rank) + " ";
  }
  line += level_name(level);
  line += ": ";
  line += text;
  line += '\n';
  // One write call for a line, so that lines of other threads, and of other ranks that share the
  // terminal or pipe, do not come in between. An error here cannot be reported to anybody.
  const char* rest = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, rest, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace perseus
