#include "schedule/tuning_log.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include "observe/log.h"

namespace perseus {
namespace {

constexpr double kPerMiB = 1 << 20;
constexpr double kPerKiB = 1 << 10;

// Returns whether an engine of this process has begun the file before. After another init the file
// is continued.
bool has_begun(const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> begun;
  std::lock_guard lock(mutex);
  return !begun.insert(path).second;
}

}  // namespace

TuningLog::TuningLog(const std::string& path) {
  if (path.empty()) return;
  const bool goes_on = has_begun(path);
  file_.open(path, goes_on ? std::ios::app : std::ios::trunc);
  if (goes_on) return;
  file_ << "trial,steps,streams,shard_mib,merge_mib,credit_mib,chunk_kib,ms_a_mib\n" << std::flush;
  if (!file_) {
    PERSEUS_LOG(kWarning,
                "PERSEUS_TUNING_LOG: cannot write to " << path << ": " << std::strerror(errno));
  }
}

void TuningLog::add(const Tuner& tuner, uint64_t slowest) {
  if (!file_.is_open()) return;
  const Tuning& tried = tuner.current();
  file_ << tuner.trial() << ',' << tuner.steps() << ',' << tried.streams << ','
        << tried.shard_bytes / kPerMiB << ',' << tried.merge_bytes / kPerMiB << ','
        << tried.credit_bytes / kPerMiB << ',' << tried.chunk_bytes / kPerKiB << ','
        << slowest / 1e6 << '\n'
        << std::flush;
}

void TuningLog::finish(const Tuner& tuner) {
  const Tuning& kept = tuner.current();
  PERSEUS_LOG(kInfo, "tuned in " << tuner.steps() << " steps: streams " << kept.streams
                                 << ", shard " << kept.shard_bytes / kPerMiB << " MiB, merge "
                                 << kept.merge_bytes / kPerMiB << " MiB, credit "
                                 << kept.credit_bytes / kPerMiB << " MiB, chunk "
                                 << kept.chunk_bytes / kPerKiB << " KiB");
  if (!file_.is_open()) return;
  file_ << "kept," << tuner.steps() << ',' << kept.streams << ',' << kept.shard_bytes / kPerMiB
        << ',' << kept.merge_bytes / kPerMiB << ',' << kept.credit_bytes / kPerMiB << ','
        << kept.chunk_bytes / kPerKiB << ",\n"
        << std::flush;
}

}  // namespace perseus
