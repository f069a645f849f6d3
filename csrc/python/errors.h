// Turns a perseus_status_t into a Python exception; perseus_core.errors chooses the class.
#pragma once

#include <string>

#include "perseus/perseus.h"

namespace perseus::python {

// Raises, by throwing pybind11::error_already_set. The caller holds the GIL.
[[noreturn]] void raise_status(perseus_status_t status, const std::string& message);

// Raises with perseus_last_error() unless `status` is PERSEUS_OK. Call it on the thread that made
// the failing call, whose message this is.
inline void check(perseus_status_t status) {
  if (status != PERSEUS_OK) raise_status(status, perseus_last_error());
}

}  // namespace perseus::python
