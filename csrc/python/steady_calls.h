#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

// Binds register, submit_allreduce, array_address, poll, wait, finish, error, release and others.
void bind_steady_calls(pybind11::module_& module);

}  // namespace perseus::python
