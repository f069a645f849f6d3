#pragma once

#include <pybind11/pybind11.h>

namespace perseus::python {

// Binds poll, wait, wait_on_stream, kept, drop_kept, finish, error and release.
void bind_handles(pybind11::module_& module);

}  // namespace perseus::python
