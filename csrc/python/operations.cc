// Registration, submission, waiting. Nothing here converts or copies a tensor: Python gives
// addresses, and keeps what they point at alive until the operation is complete.

#include "python/operations.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perseus/perseus.h"
#include "python/callbacks.h"
#include "python/errors.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

constexpr int32_t kMaxRank = 64;  // NumPy's and PyTorch's bound

// While a wait is under way, Python must be able to act on Ctrl-C.
constexpr int64_t kSignalCheckMs = 250;

// Appends the shape to `extents` and returns its rank.
int32_t append_shape(const py::tuple& shape, std::vector<int64_t>& extents) {
  const auto rank = static_cast<int32_t>(shape.size());
  for (int32_t i = 0; i < rank; ++i) {
    const long long extent = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), i));
    if (extent == -1 && PyErr_Occurred()) throw py::error_already_set();
    extents.push_back(extent);
  }
  return rank;
}

int32_t register_name(perseus_process_set_t set, perseus_operation_t operation, const char* name) {
  int32_t id = 0;
  check(perseus_register(set, operation, name, &id));
  return id;
}

// The way of a gradient: one tensor, no container, no callback.
perseus_handle_t submit_allreduce(int32_t id, uintptr_t input, uintptr_t output,
                                  const py::tuple& shape, perseus_dtype_t dtype,
                                  perseus_reduce_op_t reduce_op, double prescale, double postscale,
                                  int32_t priority) {
  int64_t extents[kMaxRank];
  const size_t rank = shape.size();
  if (rank > kMaxRank) throw py::value_error("a tensor may have at most 64 dimensions");
  for (size_t i = 0; i < rank; ++i) {
    extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), i));
    if (extents[i] == -1 && PyErr_Occurred()) throw py::error_already_set();
  }
  perseus_tensor_t tensor{};
  tensor.input = reinterpret_cast<const void*>(input);
  tensor.output = reinterpret_cast<void*>(output);
  tensor.shape = extents;
  tensor.rank = static_cast<int32_t>(rank);
  tensor.dtype = dtype;
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.id = id;
  submission.tensor_count = 1;
  submission.tensors = &tensor;
  submission.reduce_op = reduce_op;
  submission.prescale = prescale;
  submission.postscale = postscale;
  submission.priority = priority;
  perseus_handle_t handle = 0;
  check(perseus_submit(&submission, &handle));
  return handle;
}

// `tensors`: (input address, output address or 0, shape, dtype) each.
perseus_handle_t submit(int32_t id, const std::vector<py::tuple>& tensors,
                        perseus_reduce_op_t reduce_op, int32_t root, double prescale,
                        double postscale, const std::optional<std::vector<int64_t>>& splits,
                        int32_t priority, int32_t codec, const py::object& callback) {
  std::vector<int64_t> extents;
  std::vector<perseus_tensor_t> described(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    described[i].input = reinterpret_cast<const void*>(tensors[i][0].cast<uintptr_t>());
    described[i].output = reinterpret_cast<void*>(tensors[i][1].cast<uintptr_t>());
    described[i].rank = append_shape(tensors[i][2].cast<py::tuple>(), extents);
    described[i].dtype = tensors[i][3].cast<perseus_dtype_t>();
  }
  // Only now, when `extents` does not move any more.
  const int64_t* shape = extents.data();
  for (perseus_tensor_t& tensor : described) {
    tensor.shape = shape;
    shape += tensor.rank;
  }
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.id = id;
  submission.tensor_count = static_cast<int32_t>(described.size());
  submission.tensors = described.data();
  submission.reduce_op = reduce_op;
  submission.root = root;
  submission.prescale = prescale;
  submission.postscale = postscale;
  if (splits) {
    submission.splits = splits->data();
    submission.split_count = static_cast<int32_t>(splits->size());
  }
  submission.priority = priority;
  submission.codec = codec;
  if (!callback.is_none()) {
    submission.callback = queue_completion;
    submission.user = callback.inc_ref().ptr();
  }
  perseus_handle_t handle = 0;
  const perseus_status_t status = perseus_submit(&submission, &handle);
  if (status != PERSEUS_OK && !callback.is_none()) callback.dec_ref();
  check(status);
  return handle;
}

// One perseus_wait of at most `time_out_ms`, without the GIL. Raises if the operation failed.
bool wait_slice(perseus_handle_t handle, int64_t time_out_ms) {
  perseus_status_t status;
  std::string message;
  {
    py::gil_scoped_release unlocked;
    status = perseus_wait(handle, time_out_ms);
    if (status != PERSEUS_OK && status != PERSEUS_IN_PROGRESS) message = perseus_last_error();
  }
  if (status == PERSEUS_OK) return true;
  if (status == PERSEUS_IN_PROGRESS) return false;
  raise_status(status, message);
}

// Whether the operation is complete; negative waits without bound.
bool wait(perseus_handle_t handle, int64_t time_out_ms) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    int64_t slice = kSignalCheckMs;
    if (time_out_ms >= 0) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      slice = std::min(slice, std::max<int64_t>(0, time_out_ms - spent.count()));
    }
    if (wait_slice(handle, slice)) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (time_out_ms >= 0 && slice < kSignalCheckMs) return false;
  }
}

// Waits and forgets the handle, unless Python was interrupted meanwhile: then the operation is
// still under way, and so the handle and the buffers stay.
void finish(perseus_handle_t handle) {
  try {
    wait(handle, -1);
  } catch (...) {
    if (perseus_poll(handle) == 1) perseus_release(handle);
    throw;
  }
  perseus_release(handle);
}

int32_t last_rank(perseus_handle_t handle) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(handle, 0, &result));
  return result.last_rank;
}

}  // namespace

void bind_operations(py::module_& module) {
  module.def("register", &register_name, py::arg("process_set"), py::arg("operation"),
             py::arg("name"));
  module.def("submit_allreduce", &submit_allreduce, py::arg("id"), py::arg("input"),
             py::arg("output"), py::arg("shape"), py::arg("dtype"), py::arg("reduce_op"),
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("priority") = 0);
  module.def("submit", &submit, py::arg("id"), py::arg("tensors"), py::kw_only(),
             py::arg("reduce_op") = perseus_reduce_op_t{PERSEUS_SUM}, py::arg("root") = 0,
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("splits") = py::none(),
             py::arg("priority") = 0, py::arg("codec") = 0, py::arg("callback") = py::none());
  module.def(
      "refuse",
      [](int32_t id, const std::string& reason) { check(perseus_refuse(id, reason.c_str())); },
      py::arg("id"), py::arg("reason"));
  module.def("poll", &perseus_poll, py::arg("handle"));
  module.def("wait", &wait, py::arg("handle"), py::arg("time_out_ms") = -1);
  module.def("finish", &finish, py::arg("handle"));
  module.def("last_rank", &last_rank, py::arg("handle"));
  module.def("release", &perseus_release, py::arg("handle"));
}

}  // namespace perseus::python
