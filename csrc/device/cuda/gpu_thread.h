// The thread that speaks to one GPU for an engine: it queues work on the GPU's streams, in the
// order in which it was given, and sees when work is done. The engine's own thread never waits for
// the driver, nor for the GPU: a Task awaits a GpuWork and is resumed on the loop's thread.
//
//   loop's thread:  co_await GpuWork ------------------------------> resumed
//   GPU's thread:        launch -> stream ... event seen to be done -^
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

// What a GPU's thread looks after beside its work, and ends when that is abandoned: a communicator,
// whose collectives can fail, or wait for ever, on the GPU. GPU's thread.
class GpuDependent {
 public:
  virtual ~GpuDependent() = default;  // an end in order, which may wait for a moment
  // What has gone wrong since it was begun.
  virtual Status health() = 0;
  // What ends all that waits on the GPU, whose results are void then: to be called side by side,
  // as one may wait for the others' work.
  virtual std::vector<std::function<void()>> aborts() = 0;
};

// A piece of work for a GPU's thread. Lives in the frame of the Task that awaits it.
class GpuJob {
 public:
  // Queues the work, on `stream` or so that this waits for it; it may put another stream there.
  // GPU's thread, in its context.
  virtual Status launch(CuStream& stream) = 0;
  // It has been queued, and done_ is when it will be done. GPU's thread.
  virtual void launched() {}

 protected:
  // A null `stream`: nothing is queued, so that the job is done when it has been launched.
  explicit GpuJob(CuStream stream) : stream_(stream) {}
  ~GpuJob() = default;

  // The loop's thread, before the work is added and after it has come back.
  Status status_;
  std::coroutine_handle<> waiter_;  // null while nobody awaits it
  bool is_back_ = false;
  GpuEvent done_;

 private:
  bool has_no_end_ = false;  // what it has queued has no event: nobody sees it end
  friend class GpuJobs;
  friend class GpuThread;
  friend class GpuThreads;
  CuStream stream_;
  Clock::time_point launched_at_;
  GpuJob* next_ = nullptr;
};

// Jobs in the order of arrival.
class GpuJobs {
 public:
  bool empty() const { return first_ == nullptr; }
  void push(GpuJob* job);
  GpuJob* pop();  // null: none
  void take_all(GpuJobs& other);

 private:
  GpuJob* first_ = nullptr;
  GpuJob* last_ = nullptr;
};

class GpuThread {
 public:
  // patience: how long work may take that a dependent is a part of.
  GpuThread(Gpu& gpu, GpuThreads& owner, std::chrono::seconds patience)
      : gpu_(gpu), owner_(owner), patience_(patience) {}
  GpuThread(const GpuThread&) = delete;
  ~GpuThread();  // all jobs must have come back

  Status start();
  Gpu& gpu() const { return gpu_; }

  // Loop's thread.
  void add(GpuJob& job);
  // What is under way comes back with `why` though the GPU may still be at it, as does all that is
  // added from now on. What it works on must outlive it: see GpuBuffer.
  void abandon(const Status& why);
  // Ends it, later. Loop's thread.
  void retire(std::unique_ptr<GpuDependent> dependent);

  // GPU's thread.
  void look_after(GpuDependent& dependent) { dependents_.push_back(&dependent); }
  // Whether to give up what takes long here; then work fails with this.
  Status given_up() const;

 private:
  void run();
  void launch(GpuJob& job);
  // Gives back what is done; whether there was any.
  bool look();
  // Of dependents, and of what has taken too long.
  void look_for_failures();
  void abort_dependents();
  void end_retired();

  Gpu& gpu_;
  GpuThreads& owner_;
  const std::chrono::seconds patience_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable news_;
  GpuJobs queue_;
  Status why_abandoned_;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<GpuDependent>> retired_;

  // GPU's thread.
  std::vector<GpuJob*> watched_;  // launched, and not seen to be done
  std::vector<GpuDependent*> dependents_;
  Status failure_;  // of a dependent, or of what was to be launched
  bool are_aborted_ = false;
  Clock::time_point aborted_at_;
  Clock::time_point looked_at_;
};

// The GPU threads of an engine, each started with the first work for its GPU. Loop's thread, but
// for `finished`.
class GpuThreads final : Poller {
 public:
  GpuThreads(EventLoop& loop, std::chrono::seconds patience) : loop_(loop), patience_(patience) {}
  GpuThreads(const GpuThreads&) = delete;
  ~GpuThreads();

  Result<GpuThread*> of(Gpu& gpu);
  void abandon(const Status& why);

  // GPU's thread.
  void finished(GpuJobs& jobs);

 private:
  bool poll() override;
  bool prepare_to_sleep() override;
  void awake() override {}

  EventLoop& loop_;
  const std::chrono::seconds patience_;
  std::map<Gpu*, std::unique_ptr<GpuThread>> threads_;
  Status why_abandoned_;

  std::mutex mutex_;
  GpuJobs finished_;
};

// To be awaited by a Task; ends when the work that `launch`, which may take the stream as GpuJob's
// does, has queued is done. What is begun before it is awaited must be awaited all the same.
//
// `told(event)` is called on the GPU's thread when the work has been queued without an error: the
// event is its end.
struct TellNobody {
  void operator()(const GpuEvent&) const {}
};
template <typename Launch, typename Told = TellNobody>
class GpuWork final : GpuJob {
 public:
  GpuWork(GpuThread& thread, CuStream stream, Launch launch, Told told = {})
      : GpuJob(stream), thread_(thread), launch_(std::move(launch)), told_(std::move(told)) {}
  GpuWork(const GpuWork&) = delete;

  void begin() {
    has_begun_ = true;
    thread_.add(*this);
  }
  bool await_ready() const noexcept { return is_back_; }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    if (!has_begun_) begin();
  }
  Status await_resume() { return std::move(status_); }
  // Of the work that was queued, which may be under way where it was abandoned.
  GpuEvent take_event() { return std::move(done_); }

 private:
  Status launch([[maybe_unused]] CuStream& stream) override {
    if constexpr (std::is_invocable_v<Launch&, CuStream&>) {
      return launch_(stream);
    } else {
      return launch_();
    }
  }

  void launched() override { told_(done_); }

  GpuThread& thread_;
  Launch launch_;
  Told told_;
  bool has_begun_ = false;
};

}  // namespace perseus
