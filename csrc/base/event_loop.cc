#include "base/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/adaptive_yield.h"
#include "base/float_environment.h"
#include "base/loop_handoff.h"
#include "base/task.h"

namespace perseus {
namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "perseus: %s failed: %s\n", what, std::strerror(errno));
  std::abort();
}

int new_doorbell() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

// While there are pollers, timers and sockets are checked once in this many turns: a system call
// costs as much as moving a small message through shared memory. As long as the checks find
// nothing, the turns between them become more; turns that find work for the pollers count for
// several, since they take longer.
constexpr int kFewTurns = 8, kManyTurns = 32;
constexpr int kEventsPerWait = 64;
// A thread that expects an answer looks at the clock in every fourth turn: a look takes as long as
// a turn that finds nothing.
constexpr int kSkippedLooks = 3;

// The loop that this thread runs in place of the loop's own thread.
thread_local const void* helped_here = nullptr;
thread_local WaitHabit wait_habit;

class Helping {
 public:
  explicit Helping(const void* loop) { helped_here = loop; }
  Helping(const Helping&) = delete;
  ~Helping() { helped_here = nullptr; }
};

// A thread that is cancelled within a turn would take the loop with it.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = 0;
};

}  // namespace

struct EventLoop::Impl {
  Impl(std::chrono::microseconds spin_time, std::shared_ptr<const FileDescriptor> given)
      : spin(spin_time), shared_doorbell(std::move(given)) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = kDoorbellKey;
    if (!epoll_fd || !doorbell ||
        epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, doorbell.get(), &event) != 0) {
      status = Status::out_of_memory(std::string("cannot open descriptors for an event loop: ") +
                                     std::strerror(errno) +
                                     "; raise the limit on open files (ulimit -n)");
    }
  }

  // An epoll event's key holds the descriptor and, above it, the serial number of its registration:
  // an event that was fetched before its descriptor was closed and reused is dropped.
  static constexpr uint64_t kDoorbellKey = ~uint64_t{0};

  struct Watched {
    FdHandler* handler;
    uint32_t serial;
  };

  bool run_ready() {
    if (ready.empty()) return false;
    // Coroutines that these schedule run in the next turn.
    running.swap(ready);
    for (std::coroutine_handle<> handle : running) handle.resume();
    running.clear();
    return true;
  }

  bool run_posted() {
    if (!has_posted.load(std::memory_order_acquire)) return false;
    {
      std::lock_guard lock(mutex);
      has_posted.store(false, std::memory_order_relaxed);
      taken.swap(posted);
    }
    for (auto& function : taken) function();
    taken.clear();
    return true;
  }

  bool run_pollers() {
    bool moved = false;
    for (size_t i = 0; i < pollers.size(); ++i) {
      if (pollers[i] != nullptr) moved |= pollers[i]->poll();
    }
    forget_removed_pollers();
    return moved;
  }

  void forget_removed_pollers() {
    if (!pollers_removed) return;
    std::erase(pollers, nullptr);
    pollers_removed = false;
  }

  bool run_timers() {
    if (timers.empty()) return false;
    const Clock::time_point now = Clock::now();
    bool fired = false;
    while (!timers.empty() && timers.begin()->first.first <= now) {
      std::function<void()> function = std::move(timers.begin()->second);
      timer_times.erase(timers.begin()->first.second);
      timers.erase(timers.begin());
      function();
      fired = true;
    }
    return fired;
  }

  using Events = std::array<epoll_event, kEventsPerWait>;

  // The end of a socket means that a process has ended. Its messages in shared memory come first,
  // and may have come since the pollers ran: so they run again.
  bool dispatch(const Events& events, int count) {
    if (count <= 0) return false;
    run_pollers();
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;
      // The doorbell means that functions were posted or pollers have work. It is edge-triggered,
      // so it need not be read.
      if (key == kDoorbellKey) continue;
      auto found = watched.find(static_cast<int>(key & 0xffffffffu));
      if (found == watched.end() || found->second.serial != key >> 32) continue;
      found->second.handler->on_ready(events[i].events);
    }
    return true;
  }

  bool run_sockets() {
    Events events;
    return dispatch(events, epoll_wait(epoll_fd.get(), events.data(), kEventsPerWait, 0));
  }

  // Milliseconds until `until` or the next timer, rounded up so that the loop does not wake early
  // and spin through the last fraction; -1 if neither is set.
  int wait_ms(Clock::time_point until) const {
    if (!timers.empty()) until = std::min(until, timers.begin()->first.first);
    if (until == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }

  // `asleep` and the pollers' requests for a doorbell are set before the last check for work that
  // other threads have left, and those threads check them after leaving it: so one of the two sees
  // the other. Both sides exchange `asleep`, so that the later one sees all that the earlier one
  // has done.
  void sleep(Clock::time_point until) {
    asleep.exchange(true, std::memory_order_acq_rel);
    bool news = !ready.empty() || has_posted.load(std::memory_order_seq_cst) ||
                stopping.load(std::memory_order_seq_cst);
    size_t asked = 0;
    while (!news && asked < pollers.size()) {
      Poller* poller = pollers[asked++];
      if (poller != nullptr) news = !poller->prepare_to_sleep();
    }
    Events events;
    const int count =
        epoll_wait(epoll_fd.get(), events.data(), kEventsPerWait, news ? 0 : wait_ms(until));
    asleep.store(false, std::memory_order_relaxed);
    // Before any handler, since a handler may use a poller.
    for (size_t i = 0; i < asked; ++i) {
      if (pollers[i] != nullptr) pollers[i]->awake();
    }
    dispatch(events, count);
    run_timers();
  }

  bool turn() {
    bool progress = run_ready();
    progress |= run_posted();
    progress |= run_pollers();
    turns += progress ? turns_per_check / kFewTurns : 1;
    if (turns >= turns_per_check || pollers.empty()) {
      turns = 0;
      const bool has_fired = run_timers();
      const bool is_found = run_sockets() || has_fired;
      turns_per_check = is_found ? kFewTurns : std::min(2 * turns_per_check, kManyTurns);
      progress |= is_found;
    }
    return progress;
  }

  // ---- Handing the loop off; see LoopHandoff.

  bool may_hand_off() const { return policy != nullptr && policy->may_hand_off(); }

  // Hands the loop off for as long as others want it. Returns what its own thread is to do then.
  enum class Next { kTurn, kIdle, kSleep };
  Next hand_off() {
    handoff.clear_recalls();
    if (!may_hand_off() || stopping.load(std::memory_order_seq_cst)) return Next::kIdle;
    is_withheld = (is_withheld || policy->has_bulk_work()) && !policy->is_idle();
    if (is_withheld) return Next::kIdle;
    const auto has_pending_work = [this] { return policy->has_pending_work(); };
    if (handoff.hand_off(has_pending_work) == LoopHandoff::Return::kRecalled) return Next::kTurn;
    return turn() ? Next::kTurn : Next::kSleep;
  }

  // Runs the loop, which the calling thread has taken from the loop's own thread.
  void run_for(const Event& awaited, Clock::time_point now, Clock::time_point until,
               AdaptiveYield& yields) noexcept {
    const NoCancellation no_cancellation;
    const DefaultFloatEnvironment float_environment;
    const FramePool::Use use(frames);
    const Helping helping(this);
    Clock::time_point last_progress = now;
    bool is_waiting = false;
    int looks_to_skip = 0;
    while (!awaited.is_set()) {
      const bool progress = turn();
      if (progress || looks_to_skip == 0) now = Clock::now();
      if (policy->has_bulk_work() || now >= until || handoff.is_recalled() ||
          !policy->may_hand_off()) {
        return handoff.give_back(LoopHandoff::Recall::kYes, now);
      }
      if (progress) {
        if (is_waiting) yields.note_answer(now - last_progress);
        is_waiting = false;
        last_progress = now;
        looks_to_skip = 0;
        continue;
      }
      is_waiting = true;
      if (looks_to_skip > 0) {
        --looks_to_skip;
        cpu_relax();
      } else if (yields.expects_answer(now - last_progress)) {
        looks_to_skip = kSkippedLooks;
        cpu_relax();
      } else if (now - last_progress < spin && yields.is_worthwhile(now)) {
        yields.yield(now);
      } else {
        return handoff.give_back(LoopHandoff::Recall::kYesNoWorkFound, now);
      }
    }
    leave(now);
  }

  // Runs it for one turn.
  void visit() noexcept {
    const NoCancellation no_cancellation;
    const DefaultFloatEnvironment float_environment;
    const FramePool::Use use(frames);
    const Helping helping(this);
    turn();
    const Clock::time_point now = Clock::now();
    if (handoff.is_recalled()) return handoff.give_back(LoopHandoff::Recall::kYes, now);
    leave(now);
  }

  // Gives it back, for its own thread to go on with if there is something to do.
  void leave(Clock::time_point now) {
    const bool at_rest =
        ready.empty() && !has_posted.load(std::memory_order_acquire) && policy->is_idle();
    if (at_rest) return handoff.give_back(LoopHandoff::Recall::kNo, now);
    is_withheld = policy->has_pending_work() || !handoff.may_leave_work(now);
    handoff.leave(is_withheld ? LoopHandoff::Recall::kYes : LoopHandoff::Recall::kNo, now);
  }

  void ring() {
    const uint64_t one = 1;
    // Fails when 2^64 - 2 rings went unread, in which case the bell is ringing, and in a forked
    // child, where the loop does not run.
    [[maybe_unused]] ssize_t written = write(doorbell.get(), &one, sizeof(one));
  }

  const std::chrono::microseconds spin;
  const LoopHandoffPolicy* policy = nullptr;
  LoopHandoff handoff;

  // A forked child shares what it inherits, so it could take descriptors out of the loop's set.
  const FileDescriptor epoll_fd{epoll_create1(EPOLL_CLOEXEC)};
  const std::shared_ptr<const FileDescriptor> shared_doorbell;  // null if the loop has its own
  const FileDescriptor own_doorbell{epoll_fd && !shared_doorbell ? new_doorbell() : -1};
  const FileDescriptor& doorbell = shared_doorbell ? *shared_doorbell : own_doorbell;
  Status status;

  std::mutex mutex;  // guards `posted`
  std::vector<std::function<void()>> posted;
  std::atomic<bool> has_posted{false};
  std::atomic<bool> stopping{false};
  std::atomic<bool> asleep{false};

  // From here on for the loop thread only.
  FramePool frames;
  // The loop is not handed off until it is idle: a helper left work unfinished and may not come
  // back, or there was bulk work.
  bool is_withheld = false;
  std::vector<std::function<void()>> taken;
  std::vector<std::coroutine_handle<>> ready, running;
  std::vector<Poller*> pollers;  // null: removed during a turn
  bool pollers_removed = false;
  std::unordered_map<int, Watched> watched;
  uint32_t next_serial = 0;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers;
  std::unordered_map<TimerId, Clock::time_point> timer_times;
  TimerId next_timer = 1;
  int turns = 0;  // since sockets were last checked
  int turns_per_check = kFewTurns;
};

EventLoop::EventLoop(std::chrono::microseconds spin, std::shared_ptr<const FileDescriptor> doorbell)
    : impl_(std::make_unique<Impl>(spin, std::move(doorbell))) {}

EventLoop::~EventLoop() = default;

std::shared_ptr<const FileDescriptor> EventLoop::make_doorbell() {
  return std::make_shared<const FileDescriptor>(new_doorbell());
}

const Status& EventLoop::status() const { return impl_->status; }

void EventLoop::run() {
  Impl& loop = *impl_;
  bool idle = false;
  Clock::time_point idle_since{};
  AdaptiveYield yields;
  const DefaultFloatEnvironment float_environment;
  const FramePool::Use use(loop.frames);
  loop.handoff.open();
  while (!loop.stopping.exchange(false, std::memory_order_acq_rel)) {
    if (loop.turn()) {
      idle = false;
      continue;
    }
    if (loop.handoff.is_requested()) {
      const Impl::Next next = loop.hand_off();
      if (next == Impl::Next::kSleep) loop.sleep(Clock::time_point::max());
      if (next != Impl::Next::kIdle) {
        idle = false;
        continue;
      }
    }
    const Clock::time_point now = Clock::now();
    if (!idle) idle_since = now;
    idle = true;
    if (now - idle_since < loop.spin && yields.is_worthwhile(now)) {
      yields.yield(now);  // the thread or process we wait for may need this processor
      continue;
    }
    loop.sleep(Clock::time_point::max());
    idle = false;
  }
  loop.handoff.close();
}

void EventLoop::set_handoff_policy(const LoopHandoffPolicy& policy) { impl_->policy = &policy; }

void EventLoop::help(const Event& awaited, Clock::time_point now, Clock::time_point until) {
  Impl& loop = *impl_;
  thread_local AdaptiveYield yields;
  const Clock::time_point began = now;
  wait_habit.note_wait(began);
  const LoopHandoff::Request request(loop.handoff, began);
  for (; !awaited.is_set() && loop.may_hand_off(); now = Clock::now()) {
    if (loop.handoff.try_take()) return loop.run_for(awaited, now, until, yields);
    if (now >= until || now - began >= loop.spin || !yields.is_worthwhile(now)) return;
    yields.yield(now);
  }
}

void EventLoop::visit() {
  Impl& loop = *impl_;
  if (loop.handoff.is_handed_off() && loop.may_hand_off() && loop.handoff.try_take()) loop.visit();
}

void EventLoop::wake_unless_helped(Clock::time_point now) {
  const bool expects_wait = wait_habit.expects_wait();
  wait_habit.note_work(now);
  if (!impl_->handoff.leaves_work(now, expects_wait)) wake();
}

bool EventLoop::is_handed_off() const { return impl_->handoff.is_handed_off(); }

bool EventLoop::run_once(std::chrono::milliseconds wait) {
  if (impl_->turn()) return true;
  impl_->sleep(Clock::now() + wait);
  return impl_->turn();
}

void EventLoop::stop() {
  impl_->stopping.store(true, std::memory_order_seq_cst);
  impl_->ring();
  impl_->handoff.recall();
}

void EventLoop::schedule(std::coroutine_handle<> handle) { impl_->ready.push_back(handle); }

void EventLoop::post(std::function<void()> function) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->posted.push_back(std::move(function));
  }
  impl_->has_posted.store(true, std::memory_order_seq_cst);
  wake();
}

void EventLoop::wake() {
  if (impl_->asleep.exchange(false, std::memory_order_acq_rel)) impl_->ring();
  // A helping thread checks again before it leaves, so it need not recall itself.
  if (impl_->handoff.is_handed_off() && helped_here != impl_.get()) impl_->handoff.recall();
}

int EventLoop::doorbell_fd() const { return impl_->doorbell.get(); }

void EventLoop::watch(int fd, uint32_t epoll_events, FdHandler* handler) {
  auto [entry, is_new] = impl_->watched.try_emplace(fd);
  if (is_new || entry->second.handler != handler) {
    entry->second = {handler, impl_->next_serial++};
  }
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = uint64_t{entry->second.serial} << 32 | static_cast<uint32_t>(fd);
  if (epoll_ctl(impl_->epoll_fd.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0) {
    die("epoll_ctl");
  }
}

void EventLoop::unwatch(int fd) {
  if (impl_->watched.erase(fd) != 0) epoll_ctl(impl_->epoll_fd.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::add_poller(Poller* poller) { impl_->pollers.push_back(poller); }

void EventLoop::remove_poller(Poller* poller) {
  // Only marked as removed: the loop may be iterating over the list.
  std::replace(impl_->pollers.begin(), impl_->pollers.end(), poller, static_cast<Poller*>(nullptr));
  impl_->pollers_removed = true;
}

EventLoop::TimerId EventLoop::call_at(Clock::time_point when, std::function<void()> function) {
  const TimerId id = impl_->next_timer++;
  impl_->timers.emplace(std::pair(when, id), std::move(function));
  impl_->timer_times.emplace(id, when);
  return id;
}

void EventLoop::cancel_timer(TimerId id) {
  auto found = impl_->timer_times.find(id);
  if (found == impl_->timer_times.end()) return;
  impl_->timers.erase({found->second, id});
  impl_->timer_times.erase(found);
}

}  // namespace perseus
