#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

void bind_proofs(pybind11::module_& module);

}  // namespace perseus::python
