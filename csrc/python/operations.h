#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "perseus/perseus.h"

namespace perseus::python {

// Submits an operation; raises if it is refused. `keep` lives until the handle is released.
// `callback` is a Python callable, a LateCallback or None.
perseus_handle_t send(perseus_submission_t& submission, pybind11::handle keep,
                      pybind11::handle callback);

void bind_operations(pybind11::module_& module);

}  // namespace perseus::python
