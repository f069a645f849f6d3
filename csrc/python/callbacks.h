// Python callbacks of complete operations.
//
// The engine's thread must never wait for the GIL, so it only puts the completion on a queue. One
// Python thread (perseus_core.callbacks starts it with the first callback) sleeps on that queue
// without the GIL and takes it to run what has come.
#pragma once

#include <pybind11/pybind11.h>

#include "perseus/perseus.h"

namespace perseus::python {

// A perseus_callback_t; `user` owns one reference to a Python callable, which is passed on to the
// queue. Any thread, no GIL needed.
void queue_completion(void* user, perseus_handle_t handle, perseus_status_t status,
                      const char* message);

void bind_callbacks(pybind11::module_& module);

}  // namespace perseus::python
