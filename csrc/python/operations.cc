#include "python/operations.h"

#include <cstdint>
#include <string>

#include "perseus/perseus.h"
#include "python/errors.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

perseus_result_t result_of(perseus_handle_t handle, int32_t index = 0) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(handle, index, &result));
  return result;
}

}  // namespace

void bind_operations(py::module_& module) {
  module.def(
      "refuse",
      [](int32_t id, const std::string& reason) { check(perseus_refuse(id, reason.c_str())); },
      py::arg("id"), py::arg("reason"));
  module.def(
      "last_rank", [](perseus_handle_t handle) { return result_of(handle).last_rank; },
      py::arg("handle"));
  module.def(
      "result_address",
      [](perseus_handle_t handle, int32_t index) {
        return reinterpret_cast<uintptr_t>(result_of(handle, index).data);
      },
      py::arg("handle"), py::arg("index") = 0);
  module.def(
      "sequence", [](perseus_handle_t handle) { return result_of(handle).sequence; },
      py::arg("handle"));
  module.attr("NO_STREAM") = reinterpret_cast<uintptr_t>(PERSEUS_NO_STREAM);
}

}  // namespace perseus::python
