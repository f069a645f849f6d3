#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

// register, submit_allreduce, array_address, poll, wait, finish, error, release.
void bind_steady_calls(pybind11::module_& module);

}  // namespace perseus::python
