#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

// Binds register, submit, submit_allreduce and array_address.
void bind_submit(pybind11::module_& module);

}  // namespace perseus::python
