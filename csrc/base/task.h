// Coroutines for operations that take several messages: a collective reads from top to bottom like
// blocking code, and one thread runs hundreds of them concurrently.
//
// Rules. A Task runs on the event loop's thread only. It starts when it is awaited or when start()
// is called. It always ends with a Status. It must await everything that it has begun (a Transfer,
// a Task) before it returns, even with an error, since the memory of an unfinished transfer is in
// its frame. Frames come from a pool, the loop's or else the thread's, so the steady path allocates
// nothing.
#pragma once

#include <array>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "base/status.h"

namespace perseus {

// Free memory for coroutine frames, by size class. One thread at a time.
class FramePool {
 public:
  FramePool() = default;
  FramePool(const FramePool&) = delete;
  ~FramePool();

  void* take(size_t bytes);
  void give_back(void* frame, size_t bytes);

  // The pool that the calling thread uses: the loop's while it runs a loop, else its own.
  static FramePool& current();
  // Makes the calling thread use `pool` while this exists.
  class Use {
   public:
    explicit Use(FramePool& pool);
    Use(const Use&) = delete;
    ~Use();

   private:
    FramePool* const before_;
  };

 private:
  static constexpr size_t kClasses = 8;  // 128 bytes to 16 KiB; larger frames go to the heap
  struct FreeFrame {
    FreeFrame* next;
  };
  std::array<FreeFrame*, kClasses> free_{};
};

// Hears the outcome of a task that no coroutine awaits.
class TaskObserver {
 public:
  virtual void task_finished(const Status& status) = 0;

 protected:
  ~TaskObserver() = default;
};

class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    Status status;
    std::coroutine_handle<> continuation;
    TaskObserver* observer = nullptr;
    bool detached = false;

    static void* operator new(size_t bytes) { return FramePool::current().take(bytes); }
    static void operator delete(void* frame, size_t bytes) {
      FramePool::current().give_back(frame, bytes);
    }

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }

    struct FinalAwaiter {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle handle) noexcept {
        promise_type& promise = handle.promise();
        if (!promise.detached) {
          return promise.continuation ? promise.continuation : std::noop_coroutine();
        }
        TaskObserver* observer = promise.observer;
        Status status = std::move(promise.status);
        handle.destroy();
        if (observer != nullptr) observer->task_finished(status);
        return std::noop_coroutine();
      }
      void await_resume() noexcept {}
    };
    FinalAwaiter final_suspend() noexcept { return {}; }

    void return_value(Status value) { status = std::move(value); }
    // Engine code throws only when the standard library runs out of memory.
    void unhandled_exception() noexcept {
      status = Status(StatusCode::kOutOfMemory, "out of memory in a collective");
    }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs until its first wait, and from then on by itself. At its end it frees itself and tells
  // `observer` (may be null) the outcome.
  void start(TaskObserver* observer) && {
    Handle handle = std::exchange(handle_, nullptr);
    handle.promise().detached = true;
    handle.promise().observer = observer;
    handle.resume();
  }

  struct Awaiter {
    Handle handle;
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
      handle.promise().continuation = caller;
      return handle;
    }
    Status await_resume() { return std::move(handle.promise().status); }
  };
  Awaiter operator co_await() && { return Awaiter{handle_}; }

 private:
  friend class AllTasks;
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

// Either the Status of something that was done at once, or a Task to be awaited. Needs no frame
// where there is nothing to wait for.
class [[nodiscard]] MaybeTask {
 public:
  MaybeTask(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by intent
  MaybeTask(Task task) : task_(std::move(task)) {}          // NOLINT: implicit by intent

  bool await_ready() const noexcept { return !task_; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
    awaiter_ = std::move(*task_).operator co_await();
    return awaiter_->await_suspend(caller);
  }
  Status await_resume() { return task_ ? awaiter_->await_resume() : std::move(status_); }

 private:
  Status status_;
  std::optional<Task> task_;
  std::optional<Task::Awaiter> awaiter_;
};

// Runs the tasks concurrently. Ends when all of them have, with the first error if there was one:
//   co_await AllTasks(tasks);
class AllTasks : private TaskObserver {
 public:
  explicit AllTasks(std::span<Task> tasks) : tasks_(tasks) {}
  AllTasks(const AllTasks&) = delete;

  bool await_ready() const noexcept { return tasks_.empty(); }
  bool await_suspend(std::coroutine_handle<> caller) {
    // One more than there are, so that the caller is not resumed while tasks are being started.
    unfinished_ = tasks_.size() + 1;
    for (Task& task : tasks_) std::move(task).start(this);
    if (--unfinished_ == 0) return false;
    caller_ = caller;
    return true;
  }
  Status await_resume() { return first_error_; }

 private:
  void task_finished(const Status& status) override {
    if (!status.is_ok() && first_error_.is_ok()) first_error_ = status;
    if (--unfinished_ == 0) caller_.resume();
  }

  std::span<Task> tasks_;
  size_t unfinished_ = 0;
  std::coroutine_handle<> caller_;
  Status first_error_;
};

}  // namespace perseus

// Inside a Task: ends it with the error, if there is one. Use only when everything that the Task
// has begun has been awaited.
#define PERSEUS_CO_RETURN_IF_ERROR(expression)                                         \
  do {                                                                                 \
    if (::perseus::Status status_ = (expression); !status_.is_ok()) co_return status_; \
  } while (0)
