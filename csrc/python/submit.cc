// Submission of any kind of operation. Nothing here converts or copies a tensor: Python passes
// addresses, and an object to keep alive as long as they are used.

#include "python/submit.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/hand_over.h"
#include "python/plain_function.h"

namespace perseus::python {
namespace {

// register(process_set, operation, name) -> id
PyObject* register_name(const Arguments& arguments) {
  arguments.expect(3, 3);
  int32_t id = 0;
  check(perseus_register(arguments.int32(0), static_cast<perseus_operation_t>(arguments.int32(1)),
                         arguments.text(2), &id));
  return PyLong_FromLong(id);
}

// A submission and the memory of its parts.
class Submission {
 public:
  Submission(int32_t id, const Sequence& tensors)
      : tensors_(tensors.size()), extents_(tensors.size() * kMaxRank) {
    constexpr const char* kWhat = "a tensor must be a tuple (input, output, shape, dtype)";
    for (size_t i = 0; i < tensors.size(); ++i) {
      perseus_tensor_t& tensor = tensors_[i];
      int64_t* const extents = &extents_[i * kMaxRank];
      tensor.input = address_of(part(tensors[i], 0, 4, kWhat));
      tensor.output = address_of(part(tensors[i], 1, 4, kWhat));
      tensor.rank = extents_of(part(tensors[i], 2, 4, kWhat), extents);
      tensor.dtype = static_cast<perseus_dtype_t>(whole32(part(tensors[i], 3, 4, kWhat)));
      tensor.shape = extents;
    }
    submission.struct_size = sizeof submission;
    submission.id = id;
    submission.tensor_count = static_cast<int32_t>(tensors_.size());
    submission.tensors = tensors_.data();
    submission.reduce_op = PERSEUS_SUM;
    submission.prescale = submission.postscale = 1.0;
  }
  Submission(const Submission&) = delete;

  // Throws if there is no such option, or the value is wrong.
  void set(std::string_view option, PyObject* value) {
    if (option == "reduce_op") {
      submission.reduce_op = static_cast<perseus_reduce_op_t>(whole32(value));
    } else if (option == "root") {
      submission.root = whole32(value);
    } else if (option == "prescale") {
      submission.prescale = real_of(value);
    } else if (option == "postscale") {
      submission.postscale = real_of(value);
    } else if (option == "priority") {
      submission.priority = whole32(value);
    } else if (option == "codec") {
      submission.codec = whole32(value);
    } else if (option == "callback") {
      callback = value;
    } else if (option == "splits") {
      if (value != Py_None) set_splits({value, "splits must be a list"});
    } else if (option == "place") {
      if (value != Py_None) set_place(value);
    } else if (option == "offered") {
      if (value != Py_None) set_offered({value, "offered must be a list"});
    } else {
      throw py::type_error("it has no argument '" + std::string(option) + "'");
    }
  }

  perseus_submission_t submission{};
  py::handle callback = Py_None;

 private:
  void set_splits(const Sequence& splits) {
    for (size_t i = 0; i < splits.size(); ++i) splits_.push_back(whole(splits[i]));
    submission.splits = splits_.data();
    submission.split_count = static_cast<int32_t>(splits_.size());
  }
  // device, device_index and stream, as in perseus.h
  void set_place(PyObject* place) {
    constexpr const char* kWhat = "place must be a tuple (device, index, stream)";
    submission.device = static_cast<perseus_device_t>(whole32(part(place, 0, 3, kWhat)));
    submission.device_index = whole32(part(place, 1, 3, kWhat));
    submission.stream = address_of(part(place, 2, 3, kWhat));
  }
  void set_offered(const Sequence& offered) {
    constexpr const char* kWhat = "an offer must be a tuple (address, bytes)";
    if (offered.size() != tensors_.size()) throw py::value_error("one offer for each tensor");
    for (size_t i = 0; i < offered.size(); ++i) {
      offers_.push_back({address_of(part(offered[i], 0, 2, kWhat)),
                         static_cast<size_t>(whole(part(offered[i], 1, 2, kWhat)))});
    }
    submission.offered = offers_.data();
  }

  std::vector<perseus_tensor_t> tensors_;
  std::vector<int64_t> extents_;  // kMaxRank for each
  std::vector<int64_t> splits_;
  std::vector<perseus_memory_t> offers_;
};

// submit(id, keep, tensors, *, reduce_op, root, prescale, postscale, splits, priority, codec,
// callback, place, offered) -> handle. Each of `tensors`: (input, output or 0, shape, dtype).
PyObject* submit(const Arguments& arguments) {
  arguments.expect(3, 3);
  Submission call(arguments.int32(0),
                  Sequence(arguments.object(2).ptr(), "tensors must be a list"));
  arguments.for_each_keyword(
      [&](std::string_view name, PyObject* value) { call.set(name, value); });
  return PyLong_FromLongLong(
      hand_over(perseus_submit, call.submission, arguments.object(1), call.callback));
}

using Submit = perseus_status_t(const perseus_submission_t*, perseus_handle_t*);

PyObject* hand_over_allreduce(const Arguments& arguments, Submit* submit) {
  arguments.expect(7, 15);
  int64_t extents[kMaxRank];
  perseus_tensor_t tensor{};
  tensor.input = arguments.address(2);
  tensor.output = arguments.address(3);
  tensor.shape = extents;
  tensor.rank = arguments.shape(4, extents);
  tensor.dtype = static_cast<perseus_dtype_t>(arguments.int32(5));
  perseus_submission_t submission{};
  submission.struct_size = sizeof submission;
  submission.id = arguments.int32(0);
  submission.tensor_count = 1;
  submission.tensors = &tensor;
  submission.reduce_op = static_cast<perseus_reduce_op_t>(arguments.int32(6));
  submission.prescale = arguments.has(7) ? arguments.real(7) : 1.0;
  submission.postscale = arguments.has(8) ? arguments.real(8) : 1.0;
  if (arguments.has(9)) submission.priority = arguments.int32(9);
  if (arguments.has(10)) submission.codec = arguments.int32(10);
  if (arguments.has(12)) {
    arguments.expect(15, 15);
    submission.device = static_cast<perseus_device_t>(arguments.int32(12));
    submission.device_index = arguments.int32(13);
    submission.stream = arguments.address(14);
  }
  return PyLong_FromLongLong(hand_over(submit, submission, arguments.object(1),
                                       arguments.has(11) ? arguments.object(11) : Py_None));
}

// submit_allreduce(id, keep, input, output, shape, dtype, reduce_op, prescale = 1.0, postscale
// = 1.0, priority = 0, codec = 0, callback = None[, device, device_index, stream]) -> handle. For
// gradients: takes one tensor, in the CPU's memory unless a device is given.
PyObject* submit_allreduce(const Arguments& arguments) {
  return hand_over_allreduce(arguments, perseus_submit);
}

perseus_status_t run_briefly(const perseus_submission_t* submission, perseus_handle_t* handle) {
  const perseus_status_t status = perseus_run(submission, 0, handle);
  return status == PERSEUS_IN_PROGRESS ? PERSEUS_OK : status;
}

// run_allreduce(...) -> handle, or 0 if it is complete. For calls that wait: as submit_allreduce,
// for memory of the CPU's without a callback.
PyObject* run_allreduce(const Arguments& arguments) {
  arguments.expect(7, 11);
  return hand_over_allreduce(arguments, run_briefly);
}

// array_address(array) -> the address of a numpy.ndarray's elements. NumPy's own attributes would
// create several objects to get it.
PyObject* array_address(const Arguments& arguments) {
  arguments.expect(1, 1);
  if (!py::isinstance<py::array>(arguments.object(0))) throw py::type_error("it takes an ndarray");
  return PyLong_FromVoidPtr(
      const_cast<void*>(py::reinterpret_borrow<py::array>(arguments.object(0)).data()));
}

}  // namespace

void bind_submit(py::module_& module) {
  // pybind11 looks up NumPy's interface at the first use, and releases the GIL for that with a
  // guard of its own, which gil.h avoids. So this happens here, once.
  [[maybe_unused]] const bool has_numpy = py::isinstance<py::array>(py::none());
  static PyMethodDef methods[] = {
      method<register_name>("register"),
      keyword_method<submit>("submit"),
      method<submit_allreduce>("submit_allreduce"),
      method<run_allreduce>("run_allreduce"),
      method<array_address>("array_address"),
      {nullptr, nullptr, 0, nullptr},
  };
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace perseus::python
