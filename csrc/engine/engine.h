// The engine of one process, from init to shutdown. It owns the engine's thread, and wires together
// the parts that an operation passes on its way:
//
//   submit -> SubmissionQueue -> Agreements -> Executor -> OperationTracker -> done
//
// Everything but the first step runs on the engine's thread, or on a waiting thread that helps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "device/cuda/gpu_thread.h"
#include "engine/learned.h"
#include "mpi/mpi.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "state/operation.h"
#include "state/process_set.h"
#include "transport/mesh.h"

namespace perseus {

class Announcements;
struct Settings;
struct WorldRequest;

struct EngineParts;
struct QuickCall;

class Engine {
 public:
  // Joins the other processes and returns when all are there. `names`, `learned`, `timeline` and
  // `counters` belong to the process and outlive the engine.
  static Result<std::unique_ptr<Engine>> start(Settings settings, const WorldRequest& request,
                                               Names& names, Learned& learned, Timeline& timeline,
                                               Counters& counters);
  // Tells the other processes that this one cannot start, for example because a setting is
  // malformed. They then fail with the reason instead of waiting. `patience`: how long to try to
  // reach them; without it, the default start time-out.
  static void decline(const Status& why, const WorldRequest& request,
                      std::optional<std::chrono::seconds> patience = {});
  ~Engine();  // shuts down

  // ---- Any thread.

  // Hands the operation over. Its name must have been taken from `names`; it is given back when the
  // operation completes, or at once if this returns an error.
  Status submit(OperationPtr operation);
  // Tells the other ranks that this rank's call of an operation failed before it could be
  // submitted, and why. The name must not be in flight. This rank need not be in the set.
  void refuse(int32_t set, std::string_view key, std::string reason);

  // Completes the operation at once if all ranks call this at the same time; see QuickCalls::run.
  // Its name must have been taken, and stays so.
  std::optional<Status> run(const QuickCall& call);

  // Call on a thread that is about to wait for an operation's event. The thread then does the
  // engine's work, if that is allowed, until the event is set or `until` has come. See
  // EventLoop::help.
  void help(const Event& awaited, Clock::time_point now, Clock::time_point until);

  // Lives as long as the engine.
  Announcements& announcements() const;

  // Ends the work of all ranks, since this one cannot go on. Returns the error that operations get
  // from now on, on every rank.
  Status break_world(const std::string& why);

  const Topology& topology() const { return mesh_->topology(); }
  const WorldKey& world_key() const { return mesh_->world_key(); }
  const Settings& settings() const { return *settings_; }
  // The thread level of MPI; nothing where the ranks met without MPI.
  std::optional<MpiThreadLevel> mpi_thread_level() const { return mpi_thread_level_; }
  Mesh::Counters mesh_counters() const { return mesh_->counters(); }

  // See InternalOperations.
  Result<int32_t> add_process_set(std::vector<int32_t> ranks);
  Status remove_process_set(int32_t set);
  Status open_process_set(int32_t set, std::vector<int32_t> ranks);
  Status close_process_set(int32_t set);
  // The ranks of a set, ascending; kInvalidArgument if there is no such set.
  Result<SharedRanks> process_set_ranks(int32_t set) const;
  std::vector<int32_t> process_sets() const;

  // Gives agreed operations 2 s to complete, ends all others with kAborted, tells the other ranks,
  // and ends the engine's thread. `why`: the reason that other ranks are given; empty if this rank
  // shuts down normally.
  void shutdown(const std::string& why = "");

 private:
  Engine(Settings settings, bool keeps_links, Names& names, Learned& learned, Timeline& timeline,
         Counters& counters);

  Status connect(const WorldRequest& request);
  void run_thread();

  const std::unique_ptr<const Settings> settings_;  // whose fields only some sources see
  const bool keeps_links_;                          // in learned_
  Names& names_;
  Learned& learned_;
  Timeline& timeline_;
  Counters& counters_;

  EventLoop loop_;
  BufferPool buffers_;
  GpuThreads gpus_;
  std::unique_ptr<Mesh> mesh_;          // once connected
  std::unique_ptr<EngineParts> parts_;  // likewise
  std::optional<MpiThreadLevel> mpi_thread_level_;
  std::thread thread_;
};

}  // namespace perseus
