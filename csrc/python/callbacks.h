// Python callbacks of complete operations.
//
// The engine's thread must never wait for the GIL, so it only puts completions on a queue. One
// Python thread, which perseus_core.callbacks starts with the first callback, sleeps on that queue
// without the GIL, and takes the GIL to run the callbacks.
#pragma once

#include <pybind11/pybind11.h>

#include "perseus/perseus.h"

namespace perseus::python {

// A perseus_callback_t. `user` owns a reference to a Python callable, which passes to the queue.
// Any thread; needs no GIL.
void queue_completion(void* user, perseus_handle_t handle, perseus_status_t status,
                      const char* message);

void bind_callbacks(pybind11::module_& module);

}  // namespace perseus::python
