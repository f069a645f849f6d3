#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

// Binds refuse and what a complete operation's result tells.
void bind_operations(pybind11::module_& module);

}  // namespace perseus::python
