// The engine of one process: from init to shutdown. It owns the engine's thread, on which all but
// the public calls below runs, or on a thread that waits and helps; and it ties the rooms together:
//
//   submit -> queue -> negotiator of the process set -> executor -> collectives over links ->
//   complete
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/event_loop.h"
#include "base/settings.h"
#include "mpi/mpi.h"
#include "state/control.h"
#include "execution/executor.h"
#include "watch/name_conflicts.h"
#include "state/names.h"
#include "watch/peer_watch.h"
#include "state/process_set.h"
#include "watch/stall_watch.h"
#include "transport/mesh.h"

namespace perseus {

class Engine final : MeshListener,
                     Poller,
                     LoopLender,
                     ExecutorHost,
                     StallWatchHost,
                     PeerWatchHost,
                     MixUpHost {
 public:
  static constexpr int32_t kWorld = ProcessSet::kWorld;
  static constexpr int32_t kFirstOpenedSet = 1 << 20;
  static constexpr int32_t kLastOpenedSet = (1 << 23) - 1;

  // Joins the other processes and returns when all have come. `names`, `timeline` and `counters`
  // belong to the process and outlive the engine.
  static Result<std::unique_ptr<Engine>> start(Settings settings, const std::vector<int>& ranks,
                                               int generation, Names& names, Timeline& timeline,
                                               Counters& counters);
  // For a process that cannot start, say for a malformed setting: the others fail with the reason
  // instead of waiting for it. `patience`: to reach them.
  static void decline(const Status& why, const std::vector<int>& ranks, int generation,
                      std::optional<std::chrono::seconds> patience = {});
  ~Engine();  // shuts down

  // ---- Any thread.

  // Hands the operation over. Its name must have been taken from `names`; it is given back when the
  // operation completes, or at once if this returns an error.
  Status submit(OperationPtr operation);
  // This rank's call of an operation has failed before it could be submitted: the other ranks are
  // told why. Not for a name that is in flight. The set may be one that this rank is not in.
  void refuse(int32_t set, std::string_view key, std::string reason);

  // For a thread that is going to wait for the event, which an operation sets: does the engine's
  // work until then in place of the engine's thread, if that may be. See EventLoop::help.
  void help(const Event& awaited, Clock::time_point until);

  const Topology& topology() const { return mesh_->topology(); }
  const Settings& settings() const { return settings_; }
  // What MPI was initialised with; nothing where the ranks met without MPI.
  std::optional<MpiThreadLevel> mpi_thread_level() const { return mpi_thread_level_; }
  Mesh::Counters mesh_counters() const { return mesh_->counters(); }

  // Blocks until all ranks have called; one call at a time in a process.
  Result<int32_t> add_process_set(std::vector<int32_t> ranks);
  Status remove_process_set(int32_t set);
  // Sets that only their members know of, of ids from kFirstOpenedSet on that these have agreed on.
  Status open_process_set(int32_t set, std::vector<int32_t> ranks);
  Status close_process_set(int32_t set);
  // Ranks of a set, ascending; kInvalidArgument if there is no such set.
  using Ranks = std::shared_ptr<const std::vector<int>>;
  Result<Ranks> share_process_set_ranks(int32_t set) const;
  Result<std::vector<int>> process_set_ranks(int32_t set) const;
  std::vector<int32_t> process_sets() const;

  // Lets what has been agreed on end, for 2 s, and all else end with kAborted; tells the other
  // ranks, and ends the engine's thread.
  // `why`: for the other ranks, if it is no shutdown in order.
  void shutdown(const std::string& why = "");
  // Whether the calling thread runs an engine, and so is in a callback.
  static bool runs_here();
  // In a child that was forked: if by a callback, it ends when that returns.
  static void after_fork_in_child();

 private:
  Engine(Settings settings, Names& names, Timeline& timeline, Counters& counters);

  Status connect(const std::vector<int>& ranks, int generation);
  // An operation of the engine's, of no user's name; and its whole life.
  static OperationPtr own_operation(OperationKind kind, std::string_view name,
                                    std::vector<int32_t> ranks);
  Status run(const OperationPtr& operation, std::optional<std::chrono::seconds> time_out = {});
  Status wait_for(Operation& operation, std::optional<std::chrono::seconds> time_out = {});
  // Adds or removes a set: one call at a time, and `check` first.
  Result<OperationPtr> administer(OperationKind kind, std::vector<int32_t> ranks,
                                  const Status& check);
  // Sorts them.
  Status check_ranks(std::vector<int32_t>& ranks) const;
  void run_thread();

  // ---- The engine's thread from here on.

  // Poller: the queue of submissions.
  bool poll() override;
  bool prepare_to_sleep() override { return !has_news(); }
  void awake() override {}

  // LoopLender.
  bool may_lend() const override;
  bool has_news() const override { return has_submissions_.load(std::memory_order_acquire); }
  bool is_at_rest() const override;
  bool has_much_to_do() const override;

  struct Refused {
    int32_t set = 0;
    std::string key, reason;
  };
  void accept(const Refused& refused);
  void accept(const OperationPtr& operation);
  void open_or_close(const OperationPtr& operation);
  Status open(const Operation& operation);
  // Takes a set away, and tells its members, when the round that is under way has ended.
  void begin_closing(const OperationPtr& operation);
  void finish_closing(int32_t set);
  void fail_closing(const Status& why);
  // Whether the operation, if it removes a set, finds it at rest.
  Status check_at_rest(const Operation& operation) const;
  void complete(const OperationPtr& operation, Status status);
  // complete, but for waking who waits for it: whether somebody may.
  bool complete_silently(const OperationPtr& operation, Status status);

  // Process sets.
  void open_set(int32_t id, std::vector<int> ranks);
  void close_set(int32_t id);
  // Why nothing is done in a set that has been closed or removed.
  static Status set_is_gone(int32_t id);
  ProcessSetPtr find_set(int32_t id) const;
  Status conclude_admin(const Agreement::Ready& ready, Operation* operation);
  void on_agreement(ProcessSet& set, const Agreement& agreement);
  void fail_pending(ProcessSet& set, const Status& why);

  // Peers.
  void on_control(int from, std::span<const std::byte> message) override;
  void on_rank_lost(int rank, const Status& why) override;
  void on_peer_left(int peer) override;
  void on_ballot(int from, ByteReader reader, std::span<const std::byte> message);
  void on_leaving(const Leaving& leaving);
  void apply_leaving(ProcessSet& set, const Leaving& leaving);
  // What is left of the set without the rank, after the last round that it takes part in.
  void go_without(ProcessSet& set, int rank);
  // Who keeps the set from going on.
  Broken lacking(const ProcessSet& set) const;
  // Whether something is under way here that the peer takes part in.
  bool awaits(const ProcessSet& set, int peer) const;
  void break_world(const Broken& broken);
  // This rank itself is the one that cannot go on.
  Broken failed_here(const Status& why) const;
  void end_operations(const Broken& news);
  void tell_neighbours(const ProcessSet& set, std::span<const std::byte> message);
  void tell_launcher_who_is_to_blame();
  void tell_launcher_who_met();
  void send_word(int rank, ControlKind word);

  // ExecutorHost.
  void operation_done(const OperationPtr& operation, const Status& status) override;
  void wake_waiters() override;
  Status shard_failed(const Status& status) override;
  void shard_ended() override { close_when_idle(); }

  void launch_ended(ProcessSet& set) override;
  const ProcessSet& world() const override { return *sets_.at(kWorld); }
  bool may_be_preceded(int32_t set, uint64_t time) override;
  void press(ProcessSet& set);
  void on_pressing(int from, ByteReader reader, std::span<const std::byte> message);
  void on_closed(int from, const Closed& closed);
  // A message about a set that is not here: perhaps others have heard of it sooner.
  void keep_early(int32_t set, int from, std::span<const std::byte> message);

  // MixUpHost.
  const std::map<int32_t, ProcessSetPtr>& process_sets_here() const override { return sets_; }
  void advance(ProcessSet& set) override;

  // StallWatchHost.
  void send_to(int rank, std::span<const std::byte> message) override;
  void end_stalled(const Status& why) override;

  // PeerWatchHost.
  std::set<int> awaited_peers() const override;
  void ask_whether_there(int rank) override;
  void on_silent_peer(int rank) override;

  void begin_shutdown(const std::string& why);
  // Breaks the world for all, at its start, and shuts down when they have had time to hear why.
  void end_with_news(const Status& why);
  // What is said of a rank that has left.
  Broken left(int rank) const;
  void stop_taking_part();
  void close_when_idle();
  // Why no operation begins here any more; ok: some may.
  Status over() const;

  friend class SetHost;

  const Settings settings_;
  std::vector<int> processors_;  // for the engine's thread, by local rank
  Names& names_;
  Timeline& timeline_;
  Counters& counters_;

  EventLoop loop_;
  BufferPool buffers_;
  GpuThreads gpus_;
  Residuals residuals_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StallWatch> stall_watch_;
  std::unique_ptr<PeerWatch> peer_watch_;
  std::unique_ptr<MixUps> mix_ups_;
  std::thread thread_;
  int rank_ = 0;
  int size_ = 1;
  std::optional<MpiThreadLevel> mpi_thread_level_;

  // Between the callers' threads and the engine's.
  std::mutex queue_mutex_;
  std::vector<OperationPtr> queue_;
  std::vector<Refused> refused_;
  Status refusal_;  // why nothing more is accepted; ok while it is
  std::atomic<bool> has_submissions_{false};
  // Operations under way that need the engine's own thread, for their callbacks.
  std::atomic<int> bound_operations_{0};
  std::atomic<bool> is_bound_{false};  // all do: MPI and CUDA want one thread
  std::mutex admin_mutex_;
  OperationPtr last_admin_;  // by administer; it may be under way, its call interrupted
  mutable std::mutex sets_mutex_;
  std::map<int32_t, Ranks> set_ranks_;  // as of the last agreement

  // The engine's thread, or one that helps.
  std::vector<OperationPtr> accepted_;  // the queue's other half
  int under_way_ = 0;                   // accepted and not complete
  int64_t bytes_under_way_ = 0;
  std::vector<OperationPtr> to_wake_;  // operations that are done, with threads asleep for them
  std::map<int32_t, ProcessSetPtr> sets_;
  std::set<int32_t> closed_sets_;                 // of those that had been opened
  std::map<int32_t, OperationPtr> closing_sets_;  // likewise; what closes them
  int32_t next_set_ = 0;
  uint64_t time_ = 0;  // the latest of an agreement
  // Messages about sets that others have heard of sooner.
  std::map<int32_t, std::vector<std::pair<int, std::vector<std::byte>>>> early_messages_;
  std::map<int, Leaving> left_;   // by rank
  std::string why_leaving_;       // this one, if not in order
  int blamed_ = -1;               // the rank whose end made operations fail here
  bool blamed_has_left_ = false;  // in order; else it was lost
  bool blame_is_told_ = false;    // to the launcher
  Status broken_;
  bool closing_ = false;
  bool closed_ = false;
};

}  // namespace perseus
