// Python callbacks of complete operations.
//
// The engine's thread must never wait for the GIL, so it only puts completions on a queue. One
// Python thread, which perseus_core.callbacks starts with the first callback, sleeps on that queue
// without the GIL, and takes the GIL to run the callbacks.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "perseus/perseus.h"

namespace perseus::python {

// A perseus_callback_t. `user` owns a reference to a Python callable, which passes to the queue.
// Any thread; needs no GIL.
void queue_completion(void* user, perseus_handle_t handle, perseus_status_t status,
                      const char* message);

// A callback that is given after the submission, or never. Nothing is queued for an operation
// without one, so whoever waits for it in the engine does all the work, and no other thread wakes
// up.
class LateCallback {
 public:
  LateCallback();
  // The perseus_callback_t of the operation, and a `user` for it, which owns what it points to.
  static void operation_ended(void* user, perseus_handle_t handle, perseus_status_t status,
                              const char* message);
  void* user() const { return new std::shared_ptr<Slot>(slot_); }
  static void drop_user(void* user) { delete static_cast<std::shared_ptr<Slot>*>(user); }

  // Has the callback run once the operation is complete. Returns false, and does nothing, if it is
  // already. With the GIL; at most once.
  bool set(const pybind11::object& callback);

 private:
  struct Slot;

  std::shared_ptr<Slot> slot_;
};

void bind_callbacks(pybind11::module_& module);

}  // namespace perseus::python
