#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace perseus::python {

void bind_operations(pybind11::module_& module);

}  // namespace perseus::python
