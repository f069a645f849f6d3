#include "observe/timeline.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/start_thread.h"
#include "observe/log.h"
#include "observe/timeline_file.h"

namespace perseus {
namespace {

using Clock = std::chrono::steady_clock;

// How long events are gathered, so that the writer wakes at most ten times a second.
constexpr std::chrono::milliseconds kGatherTime(100);
// With this many bytes of events the writer is woken at once.
constexpr size_t kFullBatch = size_t{1} << 18;
// Bounds the memory used when the disk is slower than the events.
constexpr size_t kMostPending = size_t{1} << 26;

// The head of an event in the queue; the bytes of its texts follow.
struct QueuedEvent {
  int64_t time_ns;
  int32_t lane;
  uint32_t tensor_size, activity_size, args_size;
  char phase;
};

void enqueue(std::vector<char>& queue, const TimelineEvent& event) {
  const QueuedEvent head{event.time_ns,
                         event.lane,
                         static_cast<uint32_t>(event.tensor.size()),
                         static_cast<uint32_t>(event.activity.size()),
                         static_cast<uint32_t>(event.args.size()),
                         event.phase};
  const char* bytes = reinterpret_cast<const char*>(&head);
  queue.insert(queue.end(), bytes, bytes + sizeof(head));
  for (std::string_view text : {event.tensor, event.activity, event.args}) {
    queue.insert(queue.end(), text.begin(), text.end());
  }
}

void add_all(const std::vector<char>& queue, TimelineFile& file) {
  for (const char* at = queue.data(); at != queue.data() + queue.size();) {
    QueuedEvent head;
    std::memcpy(&head, at, sizeof(head));
    at += sizeof(head);
    TimelineEvent event{head.phase, head.time_ns, head.lane, {}, {}, {}};
    event.tensor = {at, head.tensor_size};
    event.activity = {at += head.tensor_size, head.activity_size};
    event.args = {at += head.activity_size, head.args_size};
    at += head.args_size;
    file.add(event);
  }
}

}  // namespace

struct Timeline::Impl {
  // Any thread that holds control_mutex.
  void end();
  // The writer's thread.
  void write_until_stopped(TimelineFile& file, std::atomic<bool>& enabled);

  std::mutex control_mutex;  // held through start and stop
  std::thread writer;        // joinable from start to stop
  std::unique_ptr<TimelineFile> file;

  std::mutex mutex;  // held only briefly; guards the members below
  std::condition_variable news;
  std::vector<char> pending;
  Clock::time_point opened;
  uint64_t lost = 0;
  bool accepting = false;
};

Timeline::Timeline() : impl_(std::make_unique<Impl>()) {}

Timeline::~Timeline() { stop(); }

Status Timeline::start(const std::string& path, bool mark_cycles) {
  std::lock_guard control(impl_->control_mutex);
  auto file = std::make_unique<TimelineFile>();
  PERSEUS_RETURN_IF_ERROR(file->open(path));
  enabled_.store(false, std::memory_order_relaxed);
  impl_->end();
  PERSEUS_RETURN_IF_ERROR(file->begin());
  impl_->file = std::move(file);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->opened = Clock::now();
    impl_->lost = 0;
    impl_->accepting = true;
  }
  marks_cycles_.store(mark_cycles, std::memory_order_relaxed);
  // Before the writer starts, since it disables the timeline again if it cannot write.
  enabled_.store(true, std::memory_order_relaxed);
  const Status started = start_thread(impl_->writer, "writing the timeline", [this] {
    impl_->write_until_stopped(*impl_->file, enabled_);
  });
  if (!started.is_ok()) enabled_.store(false, std::memory_order_relaxed);
  return started;
}

void Timeline::stop() {
  std::lock_guard control(impl_->control_mutex);
  enabled_.store(false, std::memory_order_relaxed);
  marks_cycles_.store(false, std::memory_order_relaxed);
  impl_->end();
}

void Timeline::Impl::end() {
  if (!writer.joinable()) return;
  {
    std::lock_guard lock(mutex);
    accepting = false;
  }
  news.notify_one();
  writer.join();
  file.reset();
}

void Timeline::record(Phase phase, std::string_view tensor, std::string_view activity, int lane,
                      std::string_view args) {
  bool wake_writer = false;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->accepting) return;
    const size_t before = impl_->pending.size();
    if (before >= kMostPending) {
      ++impl_->lost;
      return;
    }
    // Under the lock, so that times never decrease in the file.
    const auto now = std::chrono::nanoseconds(Clock::now() - impl_->opened).count();
    enqueue(impl_->pending, {static_cast<char>(phase), now, lane, tensor, activity, args});
    const size_t after = impl_->pending.size();
    wake_writer = before == 0 || (before < kFullBatch && after >= kFullBatch);
  }
  if (wake_writer) impl_->news.notify_one();
}

void Timeline::Impl::write_until_stopped(TimelineFile& file, std::atomic<bool>& enabled) {
  pthread_setname_np(pthread_self(), "perseus-trace");
  std::vector<char> batch;  // swapped with `pending`, so that soon neither allocates
  Status status;
  bool stopping = false;
  while (!stopping && status.is_ok()) {
    {
      std::unique_lock lock(mutex);
      news.wait(lock, [this] { return !pending.empty() || !accepting; });
      news.wait_for(lock, kGatherTime,
                    [this] { return pending.size() >= kFullBatch || !accepting; });
      std::swap(batch, pending);
      stopping = !accepting;
    }
    add_all(batch, file);
    batch.clear();
    status = file.flush();
  }
  if (status.is_ok()) status = file.finish();

  std::lock_guard lock(mutex);
  accepting = false;
  pending.clear();
  if (!status.is_ok()) {
    enabled.store(false, std::memory_order_relaxed);
    PERSEUS_LOG(kWarning, status.message() << "; the timeline ends here");
  }
  if (lost > 0) {
    PERSEUS_LOG(kWarning, "the timeline lacks " << lost
                                                << " events, which came faster than its disk could "
                                                   "write them");
  }
}

}  // namespace perseus
