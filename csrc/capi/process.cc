#include "capi/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/interruption.h"
#include "base/large_memory.h"
#include "capi/submission.h"
#include "codec/codec.h"
#include "engine/engine_scope.h"
#include "mpi/mpi_process.h"
#include "observe/log.h"

namespace perseus {
namespace {

thread_local std::string last_error;

void warn_about_environment() {
  for (const std::string& warning : unknown_variables(environ)) {
    PERSEUS_LOG(kWarning, warning);
  }
  for (const IgnoredVariable& ignored : ignored_variables()) {
    if (std::getenv(ignored.name) != nullptr) {
      PERSEUS_LOG(kInfo, ignored.name << " has no effect here: " << ignored.reason);
    }
  }
}

// If a program ends without perseus_shutdown, leaves the job with a reason before MPI is finalised:
// MPI then waits for all ranks, and those may be waiting for this one.
void leave_at_exit() {
  Process& process = Process::instance();
  if (EngineScope::is_here()) {
    // exit() in a callback: the engine cannot wait for its own thread.
    skip_mpi_finalize();
    return;
  }
  if (process.engine() == nullptr) return;  // already left, or a forked child
  const Status status = process.shutdown("its program ended without perseus_shutdown");
  if (!status.is_ok()) PERSEUS_LOG(kError, status.message());
}

}  // namespace

Process& Process::instance() {
  static auto& process = *new Process;
  return process;
}

Process::Process() {
  pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork_in_parent(); },
                 [] { instance().after_fork_in_child(); });
}

void Process::before_fork() {
  engine_mutex_.lock();
  names.before_fork();
  handles.before_fork();
  recycled_operations().before_fork();
  codecs_before_fork();
  Gpu::before_fork();
}

void Process::after_fork_in_parent() {
  Gpu::after_fork_in_parent();
  codecs_after_fork();
  recycled_operations().after_fork();
  handles.after_fork_in_parent();
  names.after_fork_in_parent();
  engine_mutex_.unlock();
}

void Process::after_fork_in_child() {
  Gpu::after_fork_in_child();
  EngineScope::after_fork_in_child();
  codecs_after_fork();
  recycled_operations().after_fork();
  handles.after_fork_in_child();
  names.after_fork_in_child();
  // Leaked: its destructor would wait for a thread that the child does not have.
  new std::shared_ptr<Engine>(std::move(engine_));
  engine_ = nullptr;
  engine_mutex_.unlock();
}

std::shared_ptr<Engine> Process::engine() const {
  std::lock_guard lock(engine_mutex_);
  return engine_;
}

Status Process::init(const std::vector<int>& ranks) {
  if (EngineScope::is_here() && engine() == nullptr) {
    return Status::invalid_argument("perseus_init cannot be called from a callback");
  }
  std::lock_guard lifecycle(lifecycle_);
  if (engine() != nullptr) return {};
  std::vector<std::string> warnings;
  auto settings = Settings::from_environment(&warnings);
  const int generation = generation_++;
  if (!settings.is_ok()) {
    Engine::decline(settings.status(), ranks, generation);
    return settings.status();
  }
  configure_log(settings.value().log_level, settings.value().log_hide_time, -1);
  if (generation == 0) {
    for (const std::string& warning : warnings) PERSEUS_LOG(kWarning, warning);
    warn_about_environment();
  }

  spin = std::chrono::microseconds(settings.value().spin_us);
  const std::string timeline_path = settings.value().timeline;
  const bool mark_cycles = settings.value().timeline_mark_cycles;
  auto engine =
      Engine::start(std::move(settings).value(), ranks, generation, names, timeline, counters);
  if (!engine.is_ok()) return engine.status();
  if (!timeline_path.empty() && timeline_path != "DYNAMIC" &&
      engine.value()->topology().rank == 0) {
    PERSEUS_RETURN_IF_ERROR(timeline.start(timeline_path, mark_cycles));
  }
  {
    std::lock_guard lock(engine_mutex_);
    engine_ = std::move(engine).value();
  }
  // Registered after MPI's own handler, so that it runs before that one.
  static const bool leaves = std::atexit(leave_at_exit) == 0;
  if (!leaves) PERSEUS_LOG(kWarning, "call perseus_shutdown before the program ends");
  return {};
}

Status Process::shutdown(const std::string& why) {
  // Another thread that shuts down may be waiting for this callback to end.
  if (EngineScope::is_here()) {
    return Status::invalid_argument("perseus_shutdown cannot be called from a callback");
  }
  std::shared_ptr<Engine> leaving = engine();
  if (leaving == nullptr) return {};
  std::lock_guard lifecycle(lifecycle_);
  {
    std::lock_guard lock(engine_mutex_);
    leaving = std::exchange(engine_, nullptr);
  }
  if (leaving == nullptr) return {};
  leaving->shutdown(why);
  timeline.stop();
  return {};
}

Status from_c(perseus_status_t status, const char* message) {
  if (status == PERSEUS_OK) return {};
  return {static_cast<StatusCode>(status), message};
}

KeptError::KeptError() { error_.swap(last_error); }
KeptError::~KeptError() { error_.swap(last_error); }

perseus_status_t to_c(const Status& status) {
  if (!status.is_ok()) last_error = status.message();
  return static_cast<perseus_status_t>(status.code());
}

Status not_initialized() {
  return Status::not_initialized(
      "Perseus has not been initialized, or has been shut down; call init() first");
}

}  // namespace perseus

using perseus::Process;
using perseus::Status;
using perseus::Topology;

namespace {

// Returns a property of the running engine's topology, or -1 without an engine.
template <typename Get>
int32_t topology_value(Get get) {
  const auto engine = Process::instance().engine();
  return engine == nullptr ? -1 : static_cast<int32_t>(get(engine->topology()));
}

}  // namespace

extern "C" {

int32_t perseus_version(void) {
  return PERSEUS_VERSION_MAJOR * 10000 + PERSEUS_VERSION_MINOR * 100 + PERSEUS_VERSION_PATCH;
}

const char* perseus_last_error(void) { return perseus::last_error.c_str(); }

const char* perseus_status_name(perseus_status_t status) {
  return perseus::to_string(static_cast<perseus::StatusCode>(status)).data();
}

void perseus_set_interruption_check(int (*check)(void* user), void* user) {
  perseus::set_interruption_check(check, user);
}

void perseus_prefer_huge_pages(void* memory, size_t bytes) {
  perseus::prefer_huge_pages(memory, bytes);
}

perseus_status_t perseus_init(const perseus_init_options_t* options) {
  std::vector<int> ranks;
  if (options != nullptr) {
    if (options->struct_size < sizeof *options) {
      return perseus::to_c(Status::invalid_argument("the options' struct_size is not set"));
    }
    if (options->rank_count < 0 || (options->ranks == nullptr && options->rank_count != 0)) {
      return perseus::to_c(Status::invalid_argument(
          "rank_count is " + std::to_string(options->rank_count) + ", of " +
          (options->ranks == nullptr ? "no ranks" : "an array of ranks")));
    }
    if (options->rank_count > 0) {
      ranks.assign(options->ranks, options->ranks + options->rank_count);
    }
  }
  return perseus::to_c(Process::instance().init(ranks));
}

perseus_status_t perseus_shutdown(void) { return perseus_shutdown_because(nullptr); }

perseus_status_t perseus_shutdown_because(const char* why) {
  return perseus::to_c(Process::instance().shutdown(why == nullptr ? "" : why));
}

int32_t perseus_is_initialized(void) { return Process::instance().engine() != nullptr; }

int32_t perseus_rank(void) {
  return topology_value([](const Topology& t) { return t.rank; });
}
int32_t perseus_size(void) {
  return topology_value([](const Topology& t) { return t.size; });
}
int32_t perseus_local_rank(void) {
  return topology_value([](const Topology& t) { return t.local_rank(); });
}
int32_t perseus_local_size(void) {
  return topology_value([](const Topology& t) { return t.local_size(); });
}
int32_t perseus_cross_rank(void) {
  return topology_value([](const Topology& t) { return t.cross_rank(); });
}
int32_t perseus_cross_size(void) {
  return topology_value([](const Topology& t) { return t.cross_size(); });
}
int32_t perseus_is_homogeneous(void) {
  return topology_value([](const Topology& t) { return t.is_homogeneous(); });
}

int32_t perseus_mpi_thread_level(void) {
  const auto engine = Process::instance().engine();
  if (engine == nullptr || !engine->mpi_thread_level()) return -1;
  return static_cast<int32_t>(*engine->mpi_thread_level());
}

}  // extern "C"
