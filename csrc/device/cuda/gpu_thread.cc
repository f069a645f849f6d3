#include "device/cuda/gpu_thread.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>

#include "base/start_thread.h"
#include "device/cuda/cuda_error.h"

namespace perseus {
namespace {

// Between looks at what the GPU has done: soon after there was something, ever later while there is
// nothing, so that a long step of the framework's costs no processor.
constexpr std::chrono::microseconds kShortestPause{5};
constexpr std::chrono::microseconds kLongestPause{200};
// Between looks for what has gone wrong.
constexpr std::chrono::milliseconds kFailurePause{5};
// For so long what is abandoned may come to its end, so that no memory is touched after it has been
// given back.
constexpr std::chrono::seconds kGrace{2};

}  // namespace

void GpuJobs::push(GpuJob* job) {
  job->next_ = nullptr;
  (first_ == nullptr ? first_ : last_->next_) = job;
  last_ = job;
}

GpuJob* GpuJobs::pop() {
  GpuJob* job = first_;
  if (job != nullptr) first_ = job->next_;
  return job;
}

void GpuJobs::take_all(GpuJobs& other) {
  while (GpuJob* job = other.pop()) push(job);
}

GpuThread::~GpuThread() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  news_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status GpuThread::start() {
  return start_thread(thread_, "a GPU", [this] { run(); });
}

void GpuThread::add(GpuJob& job) {
  {
    std::lock_guard lock(mutex_);
    queue_.push(&job);
  }
  news_.notify_one();
}

void GpuThread::retire(std::unique_ptr<GpuDependent> dependent) {
  {
    std::lock_guard lock(mutex_);
    retired_.push_back(std::move(dependent));
  }
  news_.notify_one();
}

void GpuThread::abandon(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (why_abandoned_.is_ok()) why_abandoned_ = why;
  }
  news_.notify_one();
}

Status GpuThread::given_up() const {
  if (!failure_.is_ok()) return failure_;
  std::lock_guard lock(mutex_);
  return why_abandoned_;
}

void GpuThread::run() {
  pthread_setname_np(pthread_self(), "perseus-gpu");
  const CurrentContext current(gpu_);
  const OutsideOfCaptures outside(gpu_.driver());
  std::chrono::microseconds pause = kShortestPause;
  GpuJobs taken;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto has_news = [this] {
        return !queue_.empty() || is_ending_ || !retired_.empty() ||
               (!why_abandoned_.is_ok() && !are_aborted_);
      };
      if (watched_.empty()) {
        news_.wait(lock, has_news);
      } else {
        news_.wait_for(lock, pause, has_news);
      }
      taken.take_all(queue_);
      if (taken.empty() && watched_.empty() && is_ending_ && retired_.empty()) return;
    }
    const bool has_jobs = !taken.empty();
    GpuJobs failed;
    while (GpuJob* job = taken.pop()) {
      job->status_ = current.status().is_ok() ? given_up() : current.status();
      if (job->status_.is_ok()) {
        launch(*job);
      } else {
        failed.push(job);
      }
    }
    if (!failed.empty()) owner_.finished(failed);
    look_for_failures();
    pause = look() || has_jobs ? kShortestPause : std::min(2 * pause, kLongestPause);
    end_retired();
  }
}

void GpuThread::look_for_failures() {
  if (!given_up().is_ok()) return abort_dependents();
  if (watched_.empty() || dependents_.empty() || !failure_.is_ok()) return;
  const auto now = Clock::now();
  if (now - looked_at_ < kFailurePause) return;
  looked_at_ = now;
  for (GpuDependent* dependent : dependents_) {
    failure_ = dependent->health();
    if (!failure_.is_ok()) return abort_dependents();
  }
  if (now - watched_.front()->launched_at_ < patience_) return;
  failure_ = Status::timed_out("a collective on GPU " + std::to_string(gpu_.ordinal()) +
                               " has not ended within " + std::to_string(patience_.count()) +
                               " s (PERSEUS_NCCL_TIMEOUT)");
  abort_dependents();
}

void GpuThread::abort_dependents() {
  if (std::exchange(are_aborted_, true)) return;
  std::vector<std::function<void()>> aborts;
  for (GpuDependent* dependent : dependents_)
    std::ranges::move(dependent->aborts(), std::back_inserter(aborts));
  std::vector<std::thread> threads(aborts.size());
  for (size_t i = 0; i < aborts.size(); ++i) {
    const auto abort = [this, &run = aborts[i]] {
      const CurrentContext current(gpu_);
      run();
    };
    if (!start_thread(threads[i], "an abort", abort).is_ok()) abort();
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  aborted_at_ = Clock::now();
}

void GpuThread::end_retired() {
  std::vector<std::unique_ptr<GpuDependent>> ending;
  {
    std::lock_guard lock(mutex_);
    ending.swap(retired_);
  }
  for (const auto& dependent : ending) std::erase(dependents_, dependent.get());
}

// Of a launch that fails a part may be queued, and so is waited for. Nothing is launched after it:
// the other ranks, which have launched theirs, would take what comes next for it.
void GpuThread::launch(GpuJob& job) {
  auto event = gpu_.take_event();
  job.status_ = event.is_ok() ? job.launch(job.stream_) : event.status();
  if (event.is_ok() && job.stream_ != nullptr) {
    const Status recorded =
        cuda_status(gpu_.driver(), gpu_.driver().record_event(event.value().get(), job.stream_),
                    "recording an event");
    if (recorded.is_ok()) {
      job.done_ = std::move(event).value();
    } else {
      job.has_no_end_ = true;
      if (job.status_.is_ok()) job.status_ = recorded;
    }
  }
  job.launched_at_ = Clock::now();
  if (!job.status_.is_ok()) {
    if (failure_.is_ok()) failure_ = job.status_;
  } else if (job.done_) {
    job.launched();
  }
  watched_.push_back(&job);
}

bool GpuThread::look() {
  const Status why = given_up();
  const bool has_grace = Clock::now() - aborted_at_ < kGrace;
  GpuJobs done;
  std::erase_if(watched_, [&](GpuJob* job) {
    Result<bool> is_done = true;
    if (job->done_) is_done = gpu_.is_done(job->done_);
    const bool is_under_way = job->has_no_end_ || (is_done.is_ok() && !is_done.value());
    if (is_under_way && (why.is_ok() || has_grace)) return false;
    if (job->status_.is_ok()) {
      // What comes to its end once dependents are aborted has no result.
      const bool is_void = is_under_way || are_aborted_;
      job->status_ = !is_done.is_ok() ? is_done.status() : is_void ? why : Status::ok();
    }
    done.push(job);
    return true;
  });
  if (done.empty()) return false;
  owner_.finished(done);
  return true;
}

GpuThreads::~GpuThreads() {
  if (!threads_.empty()) loop_.remove_poller(this);
}

Result<GpuThread*> GpuThreads::of(Gpu& gpu) {
  if (const auto found = threads_.find(&gpu); found != threads_.end()) return found->second.get();
  auto thread = std::make_unique<GpuThread>(gpu, *this, patience_);
  PERSEUS_RETURN_IF_ERROR(thread->start());
  if (!why_abandoned_.is_ok()) thread->abandon(why_abandoned_);
  if (threads_.empty()) loop_.add_poller(this);
  return (threads_[&gpu] = std::move(thread)).get();
}

void GpuThreads::abandon(const Status& why) {
  if (why_abandoned_.is_ok()) why_abandoned_ = why;
  for (const auto& [gpu, thread] : threads_) thread->abandon(why);
}

void GpuThreads::finished(GpuJobs& jobs) {
  {
    std::lock_guard lock(mutex_);
    finished_.take_all(jobs);
  }
  loop_.wake();
}

bool GpuThreads::poll() {
  GpuJobs jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.take_all(finished_);
  }
  if (jobs.empty()) return false;
  while (GpuJob* job = jobs.pop()) {
    job->is_back_ = true;
    // The waiter's frame, with the job in it, may be gone once it has been resumed.
    if (job->waiter_ != nullptr) job->waiter_.resume();
  }
  return true;
}

bool GpuThreads::prepare_to_sleep() {
  std::lock_guard lock(mutex_);
  return finished_.empty();
}

}  // namespace perseus
