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

// Between polls for completed work: short after some has completed, then growing, so that a long
// step of the framework costs no processor time.
constexpr std::chrono::microseconds kShortestPause{5};
constexpr std::chrono::microseconds kLongestPause{200};
// Between checks for errors.
constexpr std::chrono::milliseconds kHealthInterval{5};
// How long abandoned work is given to end, so that the GPU does not touch memory after it has been
// given back.
constexpr std::chrono::seconds kAbortGrace{2};

}  // namespace

void GpuWorkQueue::push(GpuWorkItem* item) {
  item->next_ = nullptr;
  (first_ == nullptr ? first_ : last_->next_) = item;
  last_ = item;
}

GpuWorkItem* GpuWorkQueue::pop() {
  GpuWorkItem* item = first_;
  if (item != nullptr) first_ = item->next_;
  return item;
}

void GpuWorkQueue::take_all(GpuWorkQueue& other) {
  while (GpuWorkItem* item = other.pop()) push(item);
}

GpuThread::~GpuThread() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status GpuThread::start() {
  return start_thread(thread_, "a GPU", [this] { run(); });
}

void GpuThread::add(GpuWorkItem& item) {
  {
    std::lock_guard lock(mutex_);
    queue_.push(&item);
  }
  changed_.notify_one();
}

void GpuThread::retire(std::unique_ptr<AbortableCommunicators> communicators) {
  {
    std::lock_guard lock(mutex_);
    retired_.push_back(std::move(communicators));
  }
  changed_.notify_one();
}

void GpuThread::abandon(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (why_abandoned_.is_ok()) why_abandoned_ = why;
  }
  changed_.notify_one();
}

Status GpuThread::stop_reason() const {
  if (!failure_.is_ok()) return failure_;
  std::lock_guard lock(mutex_);
  return why_abandoned_;
}

void GpuThread::run() {
  pthread_setname_np(pthread_self(), "perseus-gpu");
  const CurrentContext current(gpu_);
  const RelaxedCaptureMode relaxed(gpu_.driver());
  std::chrono::microseconds pause = kShortestPause;
  GpuWorkQueue taken;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto has_news = [this] {
        return !queue_.empty() || is_ending_ || !retired_.empty() ||
               (!why_abandoned_.is_ok() && !are_aborted_);
      };
      if (watched_.empty()) {
        changed_.wait(lock, has_news);
      } else {
        changed_.wait_for(lock, pause, has_news);
      }
      taken.take_all(queue_);
      if (taken.empty() && watched_.empty() && is_ending_ && retired_.empty()) return;
    }
    const bool has_items = !taken.empty();
    GpuWorkQueue failed;
    while (GpuWorkItem* item = taken.pop()) {
      item->status_ = current.status().is_ok() ? stop_reason() : current.status();
      if (item->status_.is_ok()) {
        launch(*item);
      } else {
        failed.push(item);
      }
    }
    if (!failed.empty()) owner_.finished(failed);
    check_health();
    pause = collect_finished() || has_items ? kShortestPause : std::min(2 * pause, kLongestPause);
    end_retired();
  }
}

void GpuThread::check_health() {
  if (!stop_reason().is_ok()) return abort_communicators();
  if (watched_.empty() || communicators_.empty() || !failure_.is_ok()) return;
  const auto now = Clock::now();
  if (now - checked_at_ < kHealthInterval) return;
  checked_at_ = now;
  for (AbortableCommunicators* communicators : communicators_) {
    failure_ = communicators->health();
    if (!failure_.is_ok()) return abort_communicators();
  }
  if (now - watched_.front()->launched_at_ < patience_) return;
  failure_ = Status::timed_out("a collective on GPU " + std::to_string(gpu_.ordinal()) +
                               " has not ended within " + std::to_string(patience_.count()) +
                               " s (PERSEUS_NCCL_TIMEOUT)");
  abort_communicators();
}

void GpuThread::abort_communicators() {
  if (std::exchange(are_aborted_, true)) return;
  std::vector<std::function<void()>> aborts;
  for (AbortableCommunicators* communicators : communicators_)
    std::ranges::move(communicators->aborts(), std::back_inserter(aborts));
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
  std::vector<std::unique_ptr<AbortableCommunicators>> ending;
  {
    std::lock_guard lock(mutex_);
    ending.swap(retired_);
  }
  for (const auto& communicators : ending) std::erase(communicators_, communicators.get());
}

// A launch that fails may have queued a part of its work, so it is waited for as well. Nothing is
// launched after it: the other ranks, which have launched theirs, would take the next launch for
// it.
void GpuThread::launch(GpuWorkItem& item) {
  auto event = gpu_.take_event();
  item.status_ = event.is_ok() ? item.launch(item.stream_) : event.status();
  if (event.is_ok() && item.stream_ != nullptr) {
    const Status recorded =
        cuda_status(gpu_.driver(), gpu_.driver().record_event(event.value().get(), item.stream_),
                    "recording an event");
    if (recorded.is_ok()) {
      item.done_ = std::move(event).value();
    } else {
      item.is_untracked_ = true;
      if (item.status_.is_ok()) item.status_ = recorded;
    }
  }
  item.launched_at_ = Clock::now();
  if (!item.status_.is_ok()) {
    if (failure_.is_ok()) failure_ = item.status_;
  } else if (item.done_) {
    item.launched();
  }
  watched_.push_back(&item);
}

bool GpuThread::collect_finished() {
  const Status why = stop_reason();
  const bool is_in_grace = Clock::now() - aborted_at_ < kAbortGrace;
  GpuWorkQueue done;
  std::erase_if(watched_, [&](GpuWorkItem* item) {
    Result<bool> is_done = true;
    if (item->done_) is_done = gpu_.is_done(item->done_);
    const bool is_under_way = item->is_untracked_ || (is_done.is_ok() && !is_done.value());
    if (is_under_way && (why.is_ok() || is_in_grace)) return false;
    if (item->status_.is_ok()) {
      // Work that ends after its communicators were aborted has no valid result.
      const bool is_void = is_under_way || are_aborted_;
      item->status_ = !is_done.is_ok() ? is_done.status() : is_void ? why : Status::ok();
    }
    done.push(item);
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

void GpuThreads::finished(GpuWorkQueue& items) {
  {
    std::lock_guard lock(mutex_);
    finished_.take_all(items);
  }
  loop_.wake();
}

bool GpuThreads::poll() {
  GpuWorkQueue items;
  {
    std::lock_guard lock(mutex_);
    items.take_all(finished_);
  }
  if (items.empty()) return false;
  while (GpuWorkItem* item = items.pop()) {
    item->is_finished_ = true;
    // Resuming the waiter may destroy its frame, and the item in it.
    if (item->waiter_ != nullptr) item->waiter_.resume();
  }
  return true;
}

bool GpuThreads::prepare_to_sleep() {
  std::lock_guard lock(mutex_);
  return finished_.empty();
}

}  // namespace perseus
