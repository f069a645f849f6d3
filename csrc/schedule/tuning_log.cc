#include "schedule/tuning_log.h"

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "base/output_file.h"
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

std::string text_of(const Tuning& tuning) {
  std::ostringstream text;
  text << "streams " << tuning.streams << ", shard " << tuning.shard_bytes / kPerMiB
       << " MiB, merge " << tuning.merge_bytes / kPerMiB << " MiB, credit "
       << tuning.credit_bytes / kPerMiB << " MiB, chunk " << tuning.chunk_bytes / kPerKiB << " KiB";
  return text.str();
}

void warn(const std::string& path, const Status& why) {
  PERSEUS_LOG(kWarning, "PERSEUS_TUNING_LOG: cannot write to " << path << ": " << why.message());
}

}  // namespace

TuningLog::TuningLog(const std::string& path) : path_(path) {
  if (path.empty()) return;
  const bool goes_on = has_begun(path);
  Result<FileDescriptor> opened = open_output_file(path);
  if (!opened.is_ok()) {
    if (!goes_on) warn(path, opened.status());
    return;
  }
  file_ = std::move(opened).value();
  if (goes_on) {
    lseek(file_.get(), 0, SEEK_END);
    return;
  }
  // Neither pipes nor terminals can be emptied or need it.
  [[maybe_unused]] const int ignored = ftruncate(file_.get(), 0);
  write("trial,steps,streams,shard_mib,merge_mib,credit_mib,chunk_kib,ms_a_mib\n");
}

void TuningLog::write(std::string_view line) {
  // On the engine's thread, which must not wait for a pipe's reader.
  const Status written = write_all(file_, line, std::chrono::milliseconds(0));
  if (written.is_ok()) return;
  warn(path_, written);
  file_.reset();
}

void TuningLog::add(const Tuner& tuner, uint64_t slowest) {
  if (!file_) return;
  const Tuning& tried = tuner.current();
  std::ostringstream line;
  line << tuner.trial() << ',' << tuner.steps() << ',' << tried.streams << ','
       << tried.shard_bytes / kPerMiB << ',' << tried.merge_bytes / kPerMiB << ','
       << tried.credit_bytes / kPerMiB << ',' << tried.chunk_bytes / kPerKiB << ',' << slowest / 1e6
       << '\n';
  write(line.str());
}

void TuningLog::take_over(const Tuner& tuner) {
  PERSEUS_LOG(kInfo, "as tuned in the last world"
                         << (tuner.is_finished() ? "" : ", and tunes again") << ": "
                         << text_of(tuner.current()));
  write_settled("taken over", tuner);
}

void TuningLog::finish(const Tuner& tuner) {
  PERSEUS_LOG(kInfo, "tuned in " << tuner.steps() << " steps: " << text_of(tuner.current()));
  write_settled("kept", tuner);
}

void TuningLog::write_settled(std::string_view what, const Tuner& tuner) {
  if (!file_) return;
  const Tuning& kept = tuner.current();
  std::ostringstream line;
  line << what << ',' << tuner.steps() << ',' << kept.streams << ',' << kept.shard_bytes / kPerMiB
       << ',' << kept.merge_bytes / kPerMiB << ',' << kept.credit_bytes / kPerMiB << ','
       << kept.chunk_bytes / kPerKiB << ",\n";
  write(line.str());
}

}  // namespace perseus
