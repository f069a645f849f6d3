// The thread that talks to one GPU for an engine: it queues work on the GPU's streams, in the order
// in which the work was added, and polls for its completion. The engine's own thread never waits
// for the driver or the GPU: a Task awaits an AwaitableGpuWork and is resumed on the loop's thread.
//
//   loop's thread:  co_await AwaitableGpuWork ------------------------> resumed
//   GPU's thread:        launch -> stream ... event seen complete --------^
#pragma once

#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "device/cuda/gpu.h"

namespace perseus {

class GpuThreads;

// Communicators that a GPU's thread monitors, and aborts when its work is abandoned: their
// collectives can fail on the GPU, or wait there for ever. GPU's thread.
class AbortableCommunicators {
 public:
  // Ends them in order, which may take a moment.
  virtual ~AbortableCommunicators() = default;
  // The first error since they were created, or ok.
  virtual Status health() = 0;
  // Functions that end everything that waits on the GPU, after which its results are void. Must be
  // called concurrently, since one may wait for the work of the others.
  virtual std::vector<std::function<void()>> aborts() = 0;
};

// One piece of work for a GPU's thread. Lives in the frame of the Task that awaits it.
class GpuWorkItem {
 public:
  // Queues the work on `stream`, or on another stream that `stream` then waits for; may set
  // `stream` to another one. GPU's thread, in its context.
  virtual Status launch(CuStream& stream) = 0;
  // The work has been queued; `done_` is the event of its end. GPU's thread.
  virtual void launched() {}

 protected:
  // With a null `stream` nothing is queued: the item is done once it has been launched.
  explicit GpuWorkItem(CuStream stream) : stream_(stream) {}
  ~GpuWorkItem() = default;

  // Used by the loop's thread before the work is added and after it is finished.
  Status status_;
  std::coroutine_handle<> waiter_;  // null while nobody awaits it
  bool is_finished_ = false;
  GpuEvent done_;

 private:
  bool is_untracked_ = false;  // its end cannot be seen, since no event could be recorded
  friend class GpuWorkQueue;
  friend class GpuThread;
  friend class GpuThreads;
  CuStream stream_;
  Clock::time_point launched_at_;
  GpuWorkItem* next_ = nullptr;
};

// Work items, first in, first out.
class GpuWorkQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(GpuWorkItem* item);
  GpuWorkItem* pop();  // null: none
  void take_all(GpuWorkQueue& other);

 private:
  GpuWorkItem* first_ = nullptr;
  GpuWorkItem* last_ = nullptr;
};

class GpuThread {
 public:
  // patience: how long work may take while there are communicators.
  GpuThread(Gpu& gpu, GpuThreads& owner, std::chrono::seconds patience)
      : gpu_(gpu), owner_(owner), patience_(patience) {}
  GpuThread(const GpuThread&) = delete;
  ~GpuThread();  // all items must be finished

  Status start();
  Gpu& gpu() const { return gpu_; }

  // Loop's thread.
  void add(GpuWorkItem& item);
  // Reports all work, present and future, as failed with `why`, even if the GPU is still doing it.
  // The memory that the GPU works on must outlive that work: see GpuBuffer.
  void abandon(const Status& why);
  // Destroys the communicators on the GPU's thread, later. Loop's thread.
  void retire(std::unique_ptr<AbortableCommunicators> communicators);

  // GPU's thread.
  void monitor(AbortableCommunicators& communicators) { communicators_.push_back(&communicators); }
  // Not ok once anything that takes long here must be given up; work then fails with this status.
  Status stop_reason() const;

 private:
  void run();
  void launch(GpuWorkItem& item);
  // Hands finished items back; returns whether there were any.
  bool collect_finished();
  // Looks for errors of communicators and for work that has taken too long.
  void check_health();
  void abort_communicators();
  void end_retired();

  Gpu& gpu_;
  GpuThreads& owner_;
  const std::chrono::seconds patience_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  GpuWorkQueue queue_;
  Status why_abandoned_;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<AbortableCommunicators>> retired_;

  // GPU's thread.
  std::vector<GpuWorkItem*> watched_;  // launched, and not yet seen complete
  std::vector<AbortableCommunicators*> communicators_;
  Status failure_;  // of communicators, or of a launch
  bool are_aborted_ = false;
  Clock::time_point aborted_at_;
  Clock::time_point checked_at_;
};

// The GPU threads of an engine. Each is started by the first work for its GPU. Loop's thread,
// except for `finished`.
class GpuThreads final : Poller {
 public:
  GpuThreads(EventLoop& loop, std::chrono::seconds patience) : loop_(loop), patience_(patience) {}
  GpuThreads(const GpuThreads&) = delete;
  ~GpuThreads();

  Result<GpuThread*> of(Gpu& gpu);
  void abandon(const Status& why);

  // GPU's thread.
  void finished(GpuWorkQueue& items);

 private:
  bool poll() override;
  bool prepare_to_sleep() override;
  void awake() override {}

  EventLoop& loop_;
  const std::chrono::seconds patience_;
  std::map<Gpu*, std::unique_ptr<GpuThread>> threads_;
  Status why_abandoned_;

  std::mutex mutex_;
  GpuWorkQueue finished_;
};

struct NoCallback {
  void operator()(const GpuEvent&) const {}
};

// A Task awaits this; it is ready when the work that `launch` has queued is done. `launch` may take
// the stream, as GpuWorkItem::launch does. Work that is begun before it is awaited must still be
// awaited.
//
// `on_launched(event)` is called on the GPU's thread when the work has been queued without an
// error; the event marks its end.
template <typename Launch, typename OnLaunched = NoCallback>
class AwaitableGpuWork final : GpuWorkItem {
 public:
  AwaitableGpuWork(GpuThread& thread, CuStream stream, Launch launch, OnLaunched on_launched = {})
      : GpuWorkItem(stream),
        thread_(thread),
        launch_(std::move(launch)),
        on_launched_(std::move(on_launched)) {}
  AwaitableGpuWork(const AwaitableGpuWork&) = delete;

  void begin() {
    has_begun_ = true;
    thread_.add(*this);
  }
  bool await_ready() const noexcept { return is_finished_; }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    if (!has_begun_) begin();
  }
  Status await_resume() { return std::move(status_); }
  // The event of the work's end. Work that was abandoned may still be under way.
  GpuEvent take_event() { return std::move(done_); }

 private:
  Status launch([[maybe_unused]] CuStream& stream) override {
    if constexpr (std::is_invocable_v<Launch&, CuStream&>) {
      return launch_(stream);
    } else {
      return launch_();
    }
  }

  void launched() override { on_launched_(done_); }

  GpuThread& thread_;
  Launch launch_;
  OnLaunched on_launched_;
  bool has_begun_ = false;
};

}  // namespace perseus
