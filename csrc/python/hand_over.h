// The step that every submission ends with: its callback, the call itself, and what it keeps alive.
#pragma once

#include <pybind11/pybind11.h>

#include "perseus/perseus.h"
#include "python/callbacks.h"
#include "python/errors.h"
#include "python/kept_objects.h"

namespace perseus::python {

// Calls submit(&submission, &handle) and returns the handle; raises if the submission is refused.
// `keep` lives until the handle is released. The handle is 0 if the operation is complete already.
// `callback` is a Python callable, a LateCallback or None.
template <typename Submission>
perseus_handle_t hand_over(perseus_status_t (*submit)(const Submission*, perseus_handle_t*),
                           Submission& submission, pybind11::handle keep,
                           pybind11::handle callback) {
  const bool is_late = pybind11::isinstance<LateCallback>(callback);
  if (is_late) {
    submission.callback = LateCallback::operation_ended;
    submission.user = callback.cast<const LateCallback&>().user();
  } else if (!callback.is_none()) {
    submission.callback = queue_completion;
    submission.user = callback.inc_ref().ptr();
  }
  submission.callback_thread = PERSEUS_CALLBACK_IN_WAIT;  // they wait for nothing
  perseus_handle_t handle = 0;
  const perseus_status_t status = submit(&submission, &handle);
  if (status != PERSEUS_OK && is_late) {
    LateCallback::drop_user(submission.user);
  } else if (status != PERSEUS_OK && !callback.is_none()) {
    callback.dec_ref();
  }
  check(status);
  if (handle != 0) KeptObjects::instance().keep(handle, keep);
  return handle;
}

}  // namespace perseus::python
