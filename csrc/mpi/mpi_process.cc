#include "mpi/mpi_process.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "base/interruption.h"
#include "observe/log.h"

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kMaxPause{1000};

// State that outlives init and shutdown. Guarded by `mutex`.
struct State {
  std::mutex mutex;
  MpiProcess process;
  bool duplicating = false;
  bool ready = false;
  MpiRequest duplication;
  // Not guarded: read by the thread that ends the process.
  pid_t initialized_by = 0;
};

State& state() {
  static State* state = new State;  // outlives static destructors: MPI is finalised at exit
  return *state;
}

void finalize_at_exit() {
  State& s = state();
  // A forked child inherits the handler, but not MPI.
  if (s.initialized_by != getpid() || s.process.mpi->is_finalized()) return;
  const Status status = s.process.mpi->finalize();
  if (!status.is_ok()) PERSEUS_LOG(kError, status.message());
}

Status initialize(State& s, Mpi& mpi) {
  if (mpi.is_finalized()) {
    return Status::unsupported(
        "MPI has been finalised in this process and cannot be used any more; "
        "initialise Perseus earlier, and shut it down before MPI_Finalize");
  }
  if (!mpi.is_initialized()) {
    PERSEUS_RETURN_IF_ERROR(mpi.initialize(MpiThreadLevel::kMultiple));
    s.process.initialized_here = true;
    s.initialized_by = getpid();
    s.process.mpi = &mpi;
    std::atexit(finalize_at_exit);
  }
  if (mpi.thread_level() < MpiThreadLevel::kSerialized && !mpi.is_main_thread()) {
    return Status::unsupported(
        "MPI was initialised for its main thread only, and init was called "
        "from another; initialise MPI with MPI_THREAD_MULTIPLE");
  }
  s.process.mpi = &mpi;
  return Status::ok();
}

}  // namespace

void skip_mpi_finalize() { state().initialized_by = 0; }

void MpiBackoff::pause() {
  std::this_thread::sleep_for(length_);
  length_ = std::min(length_ * 2, kMaxPause);
}

Status wait_for(Mpi& mpi, MpiRequest& request, Clock::time_point deadline) {
  MpiBackoff backoff;
  while (true) {
    bool done = false;
    PERSEUS_RETURN_IF_ERROR(mpi.test(request, done));
    if (done) return Status::ok();
    if (Clock::now() >= deadline) return Status::timed_out("MPI did not finish in time");
    if (is_interrupted()) return interrupted_status();
    backoff.pause();
  }
}

Result<MpiProcess> join_mpi(Mpi& mpi, std::chrono::milliseconds time_out) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  PERSEUS_RETURN_IF_ERROR(initialize(s, mpi));
  if (s.ready) return s.process;
  if (!s.duplicating) {
    PERSEUS_RETURN_IF_ERROR(mpi.begin_duplicate(mpi.world(), &s.process.comm, s.duplication));
    s.duplicating = true;
  }
  Status status = wait_for(mpi, s.duplication, Clock::now() + time_out);
  if (status.code() == StatusCode::kTimedOut) {
    return Status::timed_out("not every rank of MPI_COMM_WORLD has called init within " +
                             std::to_string(time_out.count() / 1000) +
                             " s; under MPI every launched process must");
  }
  PERSEUS_RETURN_IF_ERROR(status);
  PERSEUS_RETURN_IF_ERROR(mpi.return_errors(s.process.comm));
  Result<int> rank = mpi.rank(s.process.comm);
  if (!rank.is_ok()) return rank.status();
  Result<int> size = mpi.size(s.process.comm);
  if (!size.is_ok()) return size.status();
  s.process.rank = rank.value();
  s.process.size = size.value();
  s.ready = true;
  return s.process;
}

}  // namespace perseus
