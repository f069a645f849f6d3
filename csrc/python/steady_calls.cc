// The functions that a training step calls for each tensor, as plain C functions with positional
// arguments: pybind11's dispatcher takes longer than most of them.

#include "python/steady_calls.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "perseus/perseus.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/kept_objects.h"
#include "python/operations.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

constexpr Py_ssize_t kMaxRank = 64;  // the limit of NumPy and PyTorch

// While a wait is under way, Python must be able to act on Ctrl-C.
constexpr int64_t kSignalCheckMs = 250;

// The positional arguments of a call. Throws if one is wrong.
class Arguments {
 public:
  Arguments(PyObject* const* values, Py_ssize_t count) : values_(values), count_(count) {}

  void expect(Py_ssize_t least, Py_ssize_t most) const {
    if (count_ < least || count_ > most) {
      throw py::type_error("it takes " + std::to_string(least) + " to " + std::to_string(most) +
                           " arguments, not " + std::to_string(count_));
    }
  }
  bool has(Py_ssize_t index) const { return index < count_; }
  py::handle object(Py_ssize_t index) const { return values_[index]; }

  int64_t int64(Py_ssize_t index) const { return whole(values_[index]); }
  int32_t int32(Py_ssize_t index) const {
    const int64_t value = int64(index);
    if (value != static_cast<int32_t>(value)) throw py::type_error("a number beyond 32 bits");
    return static_cast<int32_t>(value);
  }
  void* address(Py_ssize_t index) const {
    void* pointer = PyLong_AsVoidPtr(values_[index]);
    if (!pointer && PyErr_Occurred()) throw py::error_already_set();
    return pointer;
  }
  double real(Py_ssize_t index) const {
    const double value = PyFloat_AsDouble(values_[index]);
    if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }
  const char* text(Py_ssize_t index) const {
    if (!PyUnicode_Check(values_[index])) throw py::type_error("text must be a str");
    const char* characters = PyUnicode_AsUTF8(values_[index]);
    if (!characters) throw py::error_already_set();
    return characters;
  }
  // Writes the shape's extents and returns its rank.
  int32_t shape(Py_ssize_t index, int64_t (&extents)[kMaxRank]) const {
    PyObject* shape = values_[index];
    if (!PyTuple_Check(shape)) throw py::type_error("a shape must be a tuple");
    const Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    if (rank > kMaxRank) throw py::value_error("a tensor may have at most 64 dimensions");
    for (Py_ssize_t i = 0; i < rank; ++i) extents[i] = whole(PyTuple_GET_ITEM(shape, i));
    return static_cast<int32_t>(rank);
  }

 private:
  static int64_t whole(PyObject* number) {
    const long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }

  PyObject* const* values_;
  Py_ssize_t count_;
};

PyObject* none() { return py::none().release().ptr(); }

// register(process_set, operation, name) -> id
PyObject* register_name(const Arguments& arguments) {
  arguments.expect(3, 3);
  int32_t id = 0;
  check(perseus_register(arguments.int32(0), static_cast<perseus_operation_t>(arguments.int32(1)),
                         arguments.text(2), &id));
  return PyLong_FromLong(id);
}

// submit_allreduce(id, keep, input, output, shape, dtype, reduce_op, prescale = 1.0, postscale
// = 1.0, priority = 0, codec = 0, callback = None[, device, device_index, stream]) -> handle. For
// gradients: takes one tensor, in the CPU's memory unless a device is given.
PyObject* submit_allreduce(const Arguments& arguments) {
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
  return PyLong_FromLongLong(
      send(submission, arguments.object(1), arguments.has(11) ? arguments.object(11) : Py_None));
}

// array_address(array) -> the address of a numpy.ndarray's elements. NumPy's own attributes would
// create several objects to get it.
PyObject* array_address(const Arguments& arguments) {
  arguments.expect(1, 1);
  if (!py::isinstance<py::array>(arguments.object(0))) throw py::type_error("it takes an ndarray");
  return PyLong_FromVoidPtr(
      const_cast<void*>(py::reinterpret_borrow<py::array>(arguments.object(0)).data()));
}

// poll(handle) -> 1, 0, or -1 for an unknown handle
PyObject* poll(const Arguments& arguments) {
  arguments.expect(1, 1);
  return PyLong_FromLong(perseus_poll(arguments.int64(0)));
}

void release_handle(perseus_handle_t handle) {
  const bool is_under_way = perseus_poll(handle) == 0;
  perseus_release(handle);
  if (!is_under_way) KeptObjects::instance().drop(handle);
}

PyObject* release(const Arguments& arguments) {
  arguments.expect(1, 1);
  release_handle(arguments.int64(0));
  return none();
}

// error(handle) -> the exception that a complete operation failed with, or None
PyObject* error(const Arguments& arguments) {
  arguments.expect(1, 1);
  try {
    check(perseus_wait(arguments.int64(0), 0));
  } catch (py::error_already_set& failed) {
    return py::object(failed.value()).release().ptr();
  }
  return none();
}

// Waits once, for at most `time_out_ms`, without the GIL. Raises if the operation failed.
template <typename Wait>
bool wait_slice(const Wait& wait, int64_t time_out_ms) {
  perseus_status_t status;
  std::string message;
  {
    Unlocked unlocked;
    status = wait(time_out_ms);
    if (status != PERSEUS_OK && status != PERSEUS_IN_PROGRESS) message = perseus_last_error();
  }
  if (status == PERSEUS_OK) return true;
  if (status == PERSEUS_IN_PROGRESS) return false;
  raise_status(status, message);
}

// Waits in slices of the time, and handles signals in between. A negative time is without bound.
template <typename Wait>
bool wait_in_slices(const Wait& wait, int64_t time_out_ms) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    int64_t slice = kSignalCheckMs;
    if (time_out_ms >= 0) {
      const auto spent =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      slice = std::min(slice, std::max<int64_t>(0, time_out_ms - spent.count()));
    }
    if (wait_slice(wait, slice)) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (time_out_ms >= 0 && slice < kSignalCheckMs) return false;
  }
}

// Returns whether the operation is complete. A negative time-out waits without bound.
bool wait_for(perseus_handle_t handle, int64_t time_out_ms) {
  // If there is nothing to wait for, the GIL is kept: another thread might hold it for long.
  if (perseus_poll(handle) != 0) {
    check(perseus_wait(handle, 0));
    return true;
  }
  return wait_in_slices([&](int64_t ms) { return perseus_wait(handle, ms); }, time_out_ms);
}

// wait(handle, time_out_ms = -1) -> True if the operation is complete
PyObject* wait(const Arguments& arguments) {
  arguments.expect(1, 2);
  return PyBool_FromLong(wait_for(arguments.int64(0), arguments.has(1) ? arguments.int64(1) : -1));
}

// wait_on_stream(handle, stream)
PyObject* wait_on_stream(const Arguments& arguments) {
  arguments.expect(2, 2);
  const perseus_handle_t handle = arguments.int64(0);
  void* stream = arguments.address(1);
  wait_in_slices([&](int64_t ms) { return perseus_wait_on_stream(handle, stream, ms); }, -1);
  return none();
}

// kept(handle) -> the object that submit was told to keep, or None
PyObject* kept(const Arguments& arguments) {
  arguments.expect(1, 1);
  return KeptObjects::instance().find(arguments.int64(0)).release().ptr();
}

// drop_kept(handle): drops that object before the operation is complete
PyObject* drop_kept(const Arguments& arguments) {
  arguments.expect(1, 1);
  KeptObjects::instance().drop(arguments.int64(0));
  return none();
}

// finish(handle): waits and releases the handle. If Python was interrupted meanwhile, the operation
// is still under way, so the handle and the buffers stay.
PyObject* finish(const Arguments& arguments) {
  arguments.expect(1, 1);
  const perseus_handle_t handle = arguments.int64(0);
  try {
    wait_for(handle, -1);
  } catch (...) {
    if (perseus_poll(handle) == 1) release_handle(handle);
    throw;
  }
  release_handle(handle);
  return none();
}

template <PyObject* (*function)(const Arguments&)>
PyObject* entry(PyObject*, PyObject* const* values, Py_ssize_t count) {
  try {
    return function(Arguments(values, count));
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <PyObject* (*function)(const Arguments&)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&entry<function>)),
          METH_FASTCALL, nullptr};
}

}  // namespace

void bind_steady_calls(py::module_& module) {
  // pybind11 looks up NumPy's interface at the first use, and releases the GIL for that with a
  // guard of its own, which gil.h avoids. So this happens here, once.
  [[maybe_unused]] const bool has_numpy = py::isinstance<py::array>(py::none());
  static PyMethodDef methods[] = {
      method<register_name>("register"),
      method<submit_allreduce>("submit_allreduce"),
      method<array_address>("array_address"),
      method<poll>("poll"),
      method<wait>("wait"),
      method<wait_on_stream>("wait_on_stream"),
      method<kept>("kept"),
      method<drop_kept>("drop_kept"),
      method<finish>("finish"),
      method<error>("error"),
      method<release>("release"),
      {nullptr, nullptr, 0, nullptr},
  };
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace perseus::python
