// Submission of any kind of operation. Nothing here converts or copies a tensor: Python passes
// addresses, and an object to keep alive as long as they are used.

#include "python/operations.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "perseus/perseus.h"
#include "python/callbacks.h"
#include "python/errors.h"
#include "python/kept_objects.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

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

// The place of a submission's tensors: device, device_index and stream, as in perseus.h.
using Place = std::tuple<perseus_device_t, int32_t, uintptr_t>;

// The caller's memory for a result: address and bytes.
using Offer = std::pair<uintptr_t, size_t>;

// Each of `tensors`: (input address, output address or 0, shape, dtype).
perseus_handle_t submit(int32_t id, const py::object& keep, const std::vector<py::tuple>& tensors,
                        perseus_reduce_op_t reduce_op, int32_t root, double prescale,
                        double postscale, const std::optional<std::vector<int64_t>>& splits,
                        int32_t priority, int32_t codec, const py::object& callback,
                        const std::optional<Place>& place,
                        const std::optional<std::vector<Offer>>& offered) {
  std::vector<int64_t> extents;
  std::vector<perseus_tensor_t> described(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    described[i].input = reinterpret_cast<const void*>(tensors[i][0].cast<uintptr_t>());
    described[i].output = reinterpret_cast<void*>(tensors[i][1].cast<uintptr_t>());
    described[i].rank = append_shape(tensors[i][2].cast<py::tuple>(), extents);
    described[i].dtype = tensors[i][3].cast<perseus_dtype_t>();
  }
  // Only now, since `extents` moves as it grows.
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
  std::vector<perseus_memory_t> offers;
  if (offered) {
    if (offered->size() != tensors.size()) throw py::value_error("one offer for each tensor");
    for (const auto& [address, bytes] : *offered) {
      offers.push_back({reinterpret_cast<void*>(address), bytes});
    }
    submission.offered = offers.data();
  }
  if (place) {
    uintptr_t stream = 0;
    std::tie(submission.device, submission.device_index, stream) = *place;
    submission.stream = reinterpret_cast<void*>(stream);
  }
  return send(submission, keep, callback);
}

perseus_result_t result_of(perseus_handle_t handle, int32_t index = 0) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(handle, index, &result));
  return result;
}

}  // namespace

perseus_handle_t send(perseus_submission_t& submission, py::handle keep, py::handle callback) {
  const bool is_late = py::isinstance<LateCallback>(callback);
  if (is_late) {
    submission.callback = LateCallback::operation_ended;
    submission.user = callback.cast<const LateCallback&>().user();
  } else if (!callback.is_none()) {
    submission.callback = queue_completion;
    submission.user = callback.inc_ref().ptr();
  }
  submission.callback_thread = PERSEUS_CALLBACK_IN_WAIT;  // they wait for nothing
  perseus_handle_t handle = 0;
  const perseus_status_t status = perseus_submit(&submission, &handle);
  if (status != PERSEUS_OK && is_late) {
    LateCallback::drop_user(submission.user);
  } else if (status != PERSEUS_OK && !callback.is_none()) {
    callback.dec_ref();
  }
  check(status);
  KeptObjects::instance().keep(handle, keep);
  return handle;
}

void bind_operations(py::module_& module) {
  module.def("submit", &submit, py::arg("id"), py::arg("keep"), py::arg("tensors"), py::kw_only(),
             py::arg("reduce_op") = perseus_reduce_op_t{PERSEUS_SUM}, py::arg("root") = 0,
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("splits") = py::none(),
             py::arg("priority") = 0, py::arg("codec") = 0, py::arg("callback") = py::none(),
             py::arg("place") = py::none(), py::arg("offered") = py::none());
  module.def(
      "refuse",
      [](int32_t id, const std::string& reason) { check(perseus_refuse(id, reason.c_str())); },
      py::arg("id"), py::arg("reason"));
  module.def(
      "await_offer",
      [](perseus_process_set_t set, perseus_operation_t operation, const std::string& prefix,
         const py::object& callback) {
        perseus_handle_t handle = 0;
        const perseus_status_t status = perseus_await_offer(
            set, operation, prefix.c_str(), queue_completion, callback.inc_ref().ptr(), &handle);
        if (status != PERSEUS_OK) callback.dec_ref();
        check(status);
        return handle;
      },
      py::arg("process_set"), py::arg("operation"), py::arg("prefix"), py::arg("callback"));
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
