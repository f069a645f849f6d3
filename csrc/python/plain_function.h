// Functions of the extension module as plain C functions, with the arguments as Python passes them:
// pybind11's dispatcher takes longer than most of these functions. The caller holds the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace perseus::python {

namespace py = pybind11;

// The limit of NumPy and PyTorch.
constexpr Py_ssize_t kMaxRank = 64;

// ---- Conversions. They throw if the object is no such thing.

inline int64_t whole(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

inline int32_t whole32(PyObject* number) {
  const int64_t value = whole(number);
  if (value != static_cast<int32_t>(value)) throw py::type_error("a number beyond 32 bits");
  return static_cast<int32_t>(value);
}

inline void* address_of(PyObject* number) {
  void* pointer = PyLong_AsVoidPtr(number);
  if (!pointer && PyErr_Occurred()) throw py::error_already_set();
  return pointer;
}

inline double real_of(PyObject* number) {
  const double value = PyFloat_AsDouble(number);
  if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

inline const char* text_of(PyObject* text) {
  if (!PyUnicode_Check(text)) throw py::type_error("text must be a str");
  const char* characters = PyUnicode_AsUTF8(text);
  if (!characters) throw py::error_already_set();
  return characters;
}

// Writes the shape's extents, for up to kMaxRank of them, and returns its rank.
inline int32_t extents_of(PyObject* shape, int64_t* extents) {
  if (!PyTuple_Check(shape)) throw py::type_error("a shape must be a tuple");
  const Py_ssize_t rank = PyTuple_GET_SIZE(shape);
  if (rank > kMaxRank) throw py::value_error("a tensor may have at most 64 dimensions");
  for (Py_ssize_t i = 0; i < rank; ++i) extents[i] = whole(PyTuple_GET_ITEM(shape, i));
  return static_cast<int32_t>(rank);
}

// A list or tuple.
class Sequence {
 public:
  Sequence(PyObject* sequence, const char* what)
      : items_(py::reinterpret_steal<py::object>(PySequence_Fast(sequence, what))) {
    if (!items_) throw py::error_already_set();
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(items_.ptr())); }
  PyObject* operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(items_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  py::object items_;
};

// Returns part `i` of a tuple that has `size` of them.
inline PyObject* part(PyObject* tuple, Py_ssize_t i, Py_ssize_t size, const char* what) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != size) throw py::type_error(what);
  return PyTuple_GET_ITEM(tuple, i);
}

// ---- Calls.

// The arguments of a call. Throws if one is wrong.
class Arguments {
 public:
  // `keywords`: the names of the values that follow the first `count`, or null.
  Arguments(PyObject* const* values, Py_ssize_t count, PyObject* keywords = nullptr)
      : values_(values), count_(count), keywords_(keywords) {}

  void expect(Py_ssize_t least, Py_ssize_t most) const {
    if (count_ < least || count_ > most) {
      throw py::type_error("it takes " + std::to_string(least) + " to " + std::to_string(most) +
                           " arguments, not " + std::to_string(count_));
    }
  }
  bool has(Py_ssize_t index) const { return index < count_; }
  py::handle object(Py_ssize_t index) const { return values_[index]; }

  int64_t int64(Py_ssize_t index) const { return whole(values_[index]); }
  int32_t int32(Py_ssize_t index) const { return whole32(values_[index]); }
  void* address(Py_ssize_t index) const { return address_of(values_[index]); }
  double real(Py_ssize_t index) const { return real_of(values_[index]); }
  const char* text(Py_ssize_t index) const { return text_of(values_[index]); }
  int32_t shape(Py_ssize_t index, int64_t (&extents)[kMaxRank]) const {
    return extents_of(values_[index], extents);
  }

  // Calls function(name, value) for each argument that is given by its name.
  template <typename Function>
  void for_each_keyword(const Function& function) const {
    const Py_ssize_t count = keywords_ == nullptr ? 0 : PyTuple_GET_SIZE(keywords_);
    for (Py_ssize_t i = 0; i < count; ++i) {
      function(std::string_view(text_of(PyTuple_GET_ITEM(keywords_, i))), values_[count_ + i]);
    }
  }

 private:
  PyObject* const* values_;
  Py_ssize_t count_;
  PyObject* keywords_;
};

inline PyObject* none() { return py::none().release().ptr(); }

inline PyObject* call(PyObject* (*function)(const Arguments&), const Arguments& arguments) {
  try {
    return function(arguments);
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
PyObject* entry(PyObject*, PyObject* const* values, Py_ssize_t count) {
  return call(function, Arguments(values, count));
}

template <PyObject* (*function)(const Arguments&)>
PyObject* keyword_entry(PyObject*, PyObject* const* values, Py_ssize_t count, PyObject* keywords) {
  return call(function, Arguments(values, count, keywords));
}

template <PyObject* (*function)(const Arguments&)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&entry<function>)),
          METH_FASTCALL, nullptr};
}

template <PyObject* (*function)(const Arguments&)>
PyMethodDef keyword_method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&keyword_entry<function>)),
          METH_FASTCALL | METH_KEYWORDS, nullptr};
}

}  // namespace perseus::python
