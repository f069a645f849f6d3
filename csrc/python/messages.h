// Messages between two ranks.
#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

void bind_messages(pybind11::module_& module);

}  // namespace perseus::python
