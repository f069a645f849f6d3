#include "python/errors.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace perseus::python {

void raise_status(perseus_status_t status, const std::string& message) {
  // Names of tensors may come from other ranks, so bytes that are not UTF-8 are replaced.
  auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (!text) throw py::error_already_set();
  py::object error =
      py::module_::import("perseus_core.errors").attr("from_status")(status, std::move(text));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

}  // namespace perseus::python
