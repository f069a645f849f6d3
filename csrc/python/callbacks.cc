#include "python/callbacks.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "python/gil.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

struct Completion {
  PyObject* callback;  // owned
  perseus_handle_t handle;
  perseus_status_t status;
  std::string message;
};

// push: any thread. pop_all: the dispatching thread, without the GIL. The mutex is held only
// briefly, and never by a thread that waits for the GIL.
class CompletionQueue {
 public:
  void push(Completion completion) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(completion));
    }
    came_.notify_one();
  }

  // Blocks until there is a completion. Returns none if close() was called and everything has been
  // handed out; the queue is then open again.
  std::vector<Completion> pop_all() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    if (waiting_.empty()) closed_ = false;
    return std::exchange(waiting_, {});
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    came_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Completion> waiting_;
  bool closed_ = false;
};

// Never destroyed: an engine thread may still push while the process ends. A forked child gets a
// new queue, since threads of the parent may be waiting in the old one.
std::atomic<CompletionQueue*> current_queue;

void begin_queue() { current_queue = new CompletionQueue; }

CompletionQueue& queue() {
  [[maybe_unused]] static const bool begun = [] {
    begin_queue();
    return pthread_atfork(nullptr, nullptr, begin_queue) == 0;
  }();
  return *current_queue;
}

void run(const Completion& completion) {
  auto callback = py::reinterpret_steal<py::object>(completion.callback);
  try {
    callback(completion.handle, completion.status, completion.message);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(callback);
  }
}

// Runs callbacks until close_callbacks.
void dispatch_callbacks() {
  for (;;) {
    std::vector<Completion> completions;
    {
      Unlocked unlocked;
      completions = queue().pop_all();
    }
    if (completions.empty()) return;
    for (const Completion& completion : completions) run(completion);
  }
}

}  // namespace

// The mutex is held only briefly, and never by a thread that waits for the GIL.
struct LateCallback::Slot {
  std::mutex mutex;
  bool is_complete = false;
  PyObject* callback = nullptr;  // owned, until the operation is complete
};

LateCallback::LateCallback() : slot_(std::make_shared<Slot>()) {}

void LateCallback::operation_ended(void* user, perseus_handle_t handle, perseus_status_t status,
                                   const char* message) {
  const std::shared_ptr<Slot> slot = *static_cast<std::shared_ptr<Slot>*>(user);
  drop_user(user);
  PyObject* callback = nullptr;
  {
    std::lock_guard lock(slot->mutex);
    slot->is_complete = true;
    callback = std::exchange(slot->callback, nullptr);
  }
  if (callback != nullptr) queue_completion(callback, handle, status, message);
}

bool LateCallback::set(const py::object& callback) {
  std::lock_guard lock(slot_->mutex);
  if (slot_->is_complete) return false;
  if (slot_->callback != nullptr) throw py::value_error("the operation has a callback already");
  slot_->callback = callback.inc_ref().ptr();
  return true;
}

void queue_completion(void* user, perseus_handle_t handle, perseus_status_t status,
                      const char* message) {
  queue().push({static_cast<PyObject*>(user), handle, status, message});
}

void bind_callbacks(py::module_& module) {
  module.def("dispatch_callbacks", &dispatch_callbacks);
  module.def("close_callbacks", [] { queue().close(); });
  py::class_<LateCallback>(module, "LateCallback")
      .def(py::init<>())
      .def("set", &LateCallback::set, py::arg("callback"));
}

}  // namespace perseus::python
