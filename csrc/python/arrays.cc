#include "python/arrays.h"

#include <string>
#include <utility>

#include "python/dtypes.h"
#include "python/errors.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

// Consumers may dislike a null pointer even where there is nothing to read.
char g_nothing;

py::tuple to_tuple(const std::vector<int64_t>& values) {
  py::tuple result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = values[i];
  return result;
}

py::buffer_info describe(void* data, perseus_dtype_t dtype, const int64_t* shape,
                         const int64_t* strides, int32_t rank, bool readonly) {
  const DtypeInfo& info = info_of(dtype);
  std::vector<py::ssize_t> extents(shape, shape + rank);
  std::vector<py::ssize_t> steps(rank);
  py::ssize_t step = info.bytes;
  for (int32_t i = rank - 1; i >= 0; --i) {
    steps[i] = strides ? strides[i] * info.bytes : step;
    step *= extents[i];
  }
  return py::buffer_info(data ? data : &g_nothing, info.bytes, info.format, rank,
                         std::move(extents), std::move(steps), readonly);
}

// What a tensor that was given away needs until its consumer is done with it. The consumer may
// call the deleter on any thread, without the GIL.
template <class Managed>
struct Lent {
  Managed managed{};
  std::shared_ptr<void> memory;
  std::vector<int64_t> shape;
};

template <class Managed>
Managed* lend(const std::shared_ptr<void>& memory, const std::vector<int64_t>& shape,
              perseus_dtype_t dtype) {
  auto* lent = new Lent<Managed>{{}, memory, shape};
  const DtypeInfo& info = info_of(dtype);
  Managed& managed = lent->managed;
  managed.context = lent;
  managed.deleter = [](Managed* self) { delete static_cast<Lent<Managed>*>(self->context); };
  managed.tensor.data = memory.get();
  managed.tensor.device = {dlpack::kCpu, 0};
  managed.tensor.rank = static_cast<int32_t>(lent->shape.size());
  managed.tensor.dtype = {info.dlpack_code, static_cast<uint8_t>(info.bytes * 8), 1};
  managed.tensor.shape = lent->shape.data();
  return &managed;
}

// Runs when a capsule is collected; one that nobody took still owns its tensor.
template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed->deleter) managed->deleter(managed);
}

py::capsule make_capsule(void* managed, const char* name, PyCapsule_Destructor destructor) {
  PyObject* capsule = PyCapsule_New(managed, name, destructor);
  if (!capsule) throw py::error_already_set();
  return py::reinterpret_steal<py::capsule>(capsule);
}

}  // namespace

Result::Result(perseus_handle_t handle, int32_t index) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(handle, index, &result));
  dtype_ = result.dtype;
  shape_.assign(result.shape, result.shape + result.rank);
  received_splits_.assign(result.received_splits,
                          result.received_splits + result.received_split_count);
  const bool empty = result.data == nullptr;
  memory_ = std::shared_ptr<void>(perseus_take_result(handle, index), perseus_free);
  if (!memory_ && !empty) {
    raise_status(PERSEUS_INVALID_ARGUMENT, "result " + std::to_string(index) +
                                               " of the operation is in the caller's own "
                                               "output, or was taken already");
  }
}

py::tuple Result::shape() const { return to_tuple(shape_); }

py::tuple Result::received_splits() const { return to_tuple(received_splits_); }

py::buffer_info Result::buffer() const {
  return describe(memory_.get(), dtype_, shape_.data(), nullptr,
                  static_cast<int32_t>(shape_.size()), false);
}

py::capsule Result::dlpack(const py::object& max_version) const {
  const bool versioned =
      !max_version.is_none() && max_version.cast<std::pair<int, int>>().first >= 1;
  if (!versioned) {
    return make_capsule(
        lend<dlpack::ManagedTensor>(memory_, shape_, dtype_), dlpack::kName,
        [](PyObject* capsule) { drop_capsule<dlpack::ManagedTensor>(capsule, dlpack::kName); });
  }
  auto* managed = lend<dlpack::ManagedTensorVersioned>(memory_, shape_, dtype_);
  managed->major = 1;
  managed->minor = 0;
  return make_capsule(managed, dlpack::kVersionedName, [](PyObject* capsule) {
    drop_capsule<dlpack::ManagedTensorVersioned>(capsule, dlpack::kVersionedName);
  });
}

DlpackArray::DlpackArray(const py::capsule& capsule) {
  const bool versioned = PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedName);
  const char* name = versioned ? dlpack::kVersionedName : dlpack::kName;
  void* pointer = PyCapsule_GetPointer(capsule.ptr(), name);
  if (!pointer) throw py::error_already_set();
  auto* newer = versioned ? static_cast<dlpack::ManagedTensorVersioned*>(pointer) : nullptr;
  auto* older = versioned ? nullptr : static_cast<dlpack::ManagedTensor*>(pointer);
  if (newer && newer->major > 1) throw py::buffer_error("the tensor's DLPack is newer than 1.x");
  const dlpack::Tensor& tensor = newer ? newer->tensor : older->tensor;
  if (tensor.device.type != dlpack::kCpu && tensor.device.type != dlpack::kCudaHost) {
    throw py::value_error("the tensor is on DLPack device " + std::to_string(tensor.device.type) +
                          "; only tensors in CPU memory can be used");
  }
  const std::optional<perseus_dtype_t> dtype = from_dlpack(tensor.dtype);
  if (!dtype) {
    throw py::type_error("the tensor's type (DLPack code " + std::to_string(tensor.dtype.code) +
                         ", " + std::to_string(tensor.dtype.bits) + " bits) cannot be sent");
  }
  dtype_ = *dtype;
  if (PyCapsule_SetName(capsule.ptr(),
                        versioned ? dlpack::kUsedVersionedName : dlpack::kUsedName) != 0) {
    throw py::error_already_set();
  }
  managed_ = older;
  versioned_ = newer;
}

DlpackArray::~DlpackArray() {
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
  if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
}

py::buffer_info DlpackArray::buffer() const {
  const dlpack::Tensor& tensor = versioned_ ? versioned_->tensor : managed_->tensor;
  const bool readonly = versioned_ && (versioned_->flags & dlpack::kReadOnly);
  return describe(static_cast<char*>(tensor.data) + tensor.byte_offset, dtype_, tensor.shape,
                  tensor.strides, tensor.rank, readonly);
}

void bind_arrays(py::module_& module) {
  py::class_<Result>(module, "Result", py::buffer_protocol())
      .def(py::init<perseus_handle_t, int32_t>(), py::arg("handle"), py::arg("index") = 0)
      .def_buffer(&Result::buffer)
      .def_property_readonly("dtype", &Result::dtype)
      .def_property_readonly("shape", &Result::shape)
      .def_property_readonly("received_splits", &Result::received_splits)
      .def(
          "__dlpack__",
          [](const Result& self, const py::object& stream, const py::object& max_version,
             const py::object& dl_device, const py::object& copy) {
            if (copy.ptr() == Py_True) {
              throw py::buffer_error("a result is given away as it is, not copied");
            }
            return self.dlpack(max_version);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const Result&) { return py::make_tuple(dlpack::kCpu, 0); });

  py::class_<DlpackArray>(module, "DlpackArray", py::buffer_protocol())
      .def(py::init<const py::capsule&>(), py::arg("capsule"))
      .def_buffer(&DlpackArray::buffer)
      .def_property_readonly("dtype", &DlpackArray::dtype);
}

}  // namespace perseus::python
