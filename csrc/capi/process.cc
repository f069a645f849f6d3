#include "capi/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "base/settings.h"
#include "bootstrap/launcher_sockets.h"
#include "bootstrap/rank_holder.h"
#include "capi/checked_submission.h"
#include "codec/codec.h"
#include "engine/engine_scope.h"
#include "mpi/mpi_process.h"
#include "observe/log.h"

namespace perseus {
namespace {

void warn_about_environment(const std::vector<std::string>& of_settings) {
  for (const std::string& warning : of_settings) PERSEUS_LOG(kWarning, warning);
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
  learned.residuals.before_fork();
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
  learned.residuals.after_fork_in_parent();
  names.after_fork_in_parent();
  engine_mutex_.unlock();
}

void Process::after_fork_in_child() {
  Gpu::after_fork_in_child();
  EngineScope::after_fork_in_child();
  codecs_after_fork();
  recycled_operations().after_fork();
  handles.after_fork_in_child();
  learned.residuals.after_fork_in_child();
  learned.links.after_fork_in_child();
  names.after_fork_in_child();
  // Leaked: its destructor would wait for a thread that the child does not have.
  new std::shared_ptr<Engine>(std::move(engine_));
  engine_ = nullptr;
  engine_mutex_.unlock();
  // A thread of the parent may have it, in init or shutdown, which the child does not have.
  new (&lifecycle_) std::mutex;
}

std::shared_ptr<Engine> Process::engine() const {
  std::lock_guard lock(engine_mutex_);
  return engine_;
}

Status Process::init(WorldRequest request) {
  if (EngineScope::is_here() && engine() == nullptr) {
    return Status::invalid_argument("perseus_init cannot be called from a callback");
  }
  std::lock_guard lifecycle(lifecycle_);
  if (engine() != nullptr) return {};
  // Before anything that the other ranks could hear of.
  PERSEUS_RETURN_IF_ERROR(take_rank(request.told ? &*request.told : nullptr));
  hold_launcher_sockets();
  const Status joined = join(std::move(request));
  if (!joined.is_ok() && engine() == nullptr) give_rank_back();
  return joined;
}

void Process::give_rank_back() {
  hand_on_launcher_sockets();
  give_back_rank();
}

Status Process::join(WorldRequest request) {
  std::vector<std::string> warnings;
  auto settings = Settings::from_environment(&warnings);
  const bool is_first_call = calls_++ == 0;
  if (!request.told) request.generation = generation_++;
  if (!settings.is_ok()) {
    Engine::decline(settings.status(), request);
    return settings.status();
  }
  configure_log(settings.value().log_level, settings.value().log_hide_time, -1);
  spin = std::chrono::microseconds(settings.value().spin_us);
  const std::string timeline_path = settings.value().timeline;
  const bool mark_cycles = settings.value().timeline_mark_cycles;
  auto engine =
      Engine::start(std::move(settings).value(), request, names, learned, timeline, counters);
  // All ranks have the same environment as a rule, so one warns for all of them. A rank that could
  // not join the others does not know whether it is the one.
  const bool is_first = !engine.is_ok() || engine.value()->topology().rank == 0;
  if (is_first_call && is_first) warn_about_environment(warnings);
  if (!engine.is_ok()) return engine.status();
  if (!timeline_path.empty() && timeline_path != "DYNAMIC" &&
      engine.value()->topology().rank == 0) {
    const Status started = timeline.start(timeline_path, mark_cycles);
    if (!started.is_ok()) {
      PERSEUS_LOG(kWarning, "PERSEUS_TIMELINE: " << started.message()
                                                 << "; the job goes on without a timeline");
    }
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
  give_rank_back();
  return {};
}

}  // namespace perseus
