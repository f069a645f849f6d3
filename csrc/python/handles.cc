// Calls that take the handle of an operation.

#include "python/handles.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/kept_objects.h"
#include "python/plain_function.h"

namespace perseus::python {
namespace {

// While a wait is under way, Python must be able to act on Ctrl-C.
constexpr int64_t kSignalCheckMs = 250;

// poll(handle) -> 1, 0, or -1 for an unknown handle
PyObject* poll(const Arguments& arguments) {
  arguments.expect(1, 1);
  return PyLong_FromLong(perseus_poll(arguments.int64(0)));
}

void release_handle(perseus_handle_t handle) {
  const bool is_under_way = perseus_poll(handle) == 0;
  perseus_release(handle);
  if (!is_under_way) KeptObjects::instance().drop(handle);
}

PyObject* release(const Arguments& arguments) {
  arguments.expect(1, 1);
  release_handle(arguments.int64(0));
  return none();
}

// error(handle) -> the exception that a complete operation failed with, or None
PyObject* error(const Arguments& arguments) {
  arguments.expect(1, 1);
  try {
    check(perseus_wait(arguments.int64(0), 0));
  } catch (py::error_already_set& failed) {
    return py::object(failed.value()).release().ptr();
  }
  return none();
}

// Waits once, for at most `time_out_ms`, without the GIL. Raises if the operation failed.
template <typename Wait>
bool wait_slice(const Wait& wait, int64_t time_out_ms) {
  perseus_status_t status;
  std::string message;
  {
    Unlocked unlocked;
    status = wait(time_out_ms);
    if (status != PERSEUS_OK && status != PERSEUS_IN_PROGRESS) message = perseus_last_error();
  }
  if (status == PERSEUS_OK) return true;
  if (status == PERSEUS_IN_PROGRESS) return false;
  raise_status(status, message);
}

// Waits in slices of the time, and handles signals in between. A negative time is without bound.
template <typename Wait>
bool wait_in_slices(const Wait& wait, int64_t time_out_ms) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    int64_t slice = kSignalCheckMs;
    if (time_out_ms >= 0) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      slice = std::min(slice, std::max<int64_t>(0, time_out_ms - spent.count()));
    }
    if (wait_slice(wait, slice)) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (time_out_ms >= 0 && slice < kSignalCheckMs) return false;
  }
}

// Returns whether the operation is complete. A negative time-out waits without bound.
bool wait_for(perseus_handle_t handle, int64_t time_out_ms) {
  // If there is nothing to wait for, the GIL is kept: another thread might hold it for long.
  if (perseus_poll(handle) != 0) {
    check(perseus_wait(handle, 0));
    return true;
  }
  return wait_in_slices([&](int64_t ms) { return perseus_wait(handle, ms); }, time_out_ms);
}

// wait(handle, time_out_ms = -1) -> True if the operation is complete
PyObject* wait(const Arguments& arguments) {
  arguments.expect(1, 2);
  return PyBool_FromLong(wait_for(arguments.int64(0), arguments.has(1) ? arguments.int64(1) : -1));
}

// wait_on_stream(handle, stream)
PyObject* wait_on_stream(const Arguments& arguments) {
  arguments.expect(2, 2);
  const perseus_handle_t handle = arguments.int64(0);
  void* stream = arguments.address(1);
  wait_in_slices([&](int64_t ms) { return perseus_wait_on_stream(handle, stream, ms); }, -1);
  return none();
}

// kept(handle) -> the object that submit was told to keep, or None
PyObject* kept(const Arguments& arguments) {
  arguments.expect(1, 1);
  return KeptObjects::instance().find(arguments.int64(0)).release().ptr();
}

// drop_kept(handle): drops that object before the operation is complete
PyObject* drop_kept(const Arguments& arguments) {
  arguments.expect(1, 1);
  KeptObjects::instance().drop(arguments.int64(0));
  return none();
}

// finish(handle): waits and releases the handle. If Python was interrupted meanwhile, the operation
// is still under way, so the handle and the buffers stay.
PyObject* finish(const Arguments& arguments) {
  arguments.expect(1, 1);
  const perseus_handle_t handle = arguments.int64(0);
  try {
    wait_for(handle, -1);
  } catch (...) {
    if (perseus_poll(handle) == 1) release_handle(handle);
    throw;
  }
  release_handle(handle);
  return none();
}

}  // namespace

void bind_handles(py::module_& module) {
  static PyMethodDef methods[] = {
      method<poll>("poll"),
      method<wait>("wait"),
      method<wait_on_stream>("wait_on_stream"),
      method<kept>("kept"),
      method<drop_kept>("drop_kept"),
      method<finish>("finish"),
      method<error>("error"),
      method<release>("release"),
      {nullptr, nullptr, 0, nullptr},
  };
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace perseus::python
