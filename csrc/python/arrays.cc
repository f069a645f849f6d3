#include "python/arrays.h"

#include <string>
#include <utility>

#include "python/dtypes.h"
#include "python/errors.h"

namespace py = pybind11;

namespace perseus::python {
namespace {

// Some consumers reject a null pointer even if there is nothing to read.
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

// Keeps what a tensor needs until its consumer is done with it. The consumer may call the deleter
// on any thread, without the GIL.
template <class Managed>
struct Lent {
  Managed managed{};
  std::shared_ptr<void> memory;
  std::vector<int64_t> shape;
};

template <class Managed>
Managed* lend(const std::shared_ptr<void>& memory, const std::vector<int64_t>& shape,
              perseus_dtype_t dtype, dlpack::Device device) {
  auto* lent = new Lent<Managed>{{}, memory, shape};
  const DtypeInfo& info = info_of(dtype);
  Managed& managed = lent->managed;
  managed.context = lent;
  managed.deleter = [](Managed* self) { delete static_cast<Lent<Managed>*>(self->context); };
  managed.tensor.data = memory.get();
  managed.tensor.device = device;
  managed.tensor.rank = static_cast<int32_t>(lent->shape.size());
  managed.tensor.dtype = {info.dlpack_code, static_cast<uint8_t>(info.bytes * 8), 1};
  managed.tensor.shape = lent->shape.data();
  return &managed;
}

// Runs when a capsule is collected. A capsule that no consumer took still owns its tensor.
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

bool is_cpu(dlpack::Device device) {
  return device.type == dlpack::kCpu || device.type == dlpack::kCudaHost;
}

bool is_gpu(dlpack::Device device) {
  return device.type == dlpack::kCuda || device.type == dlpack::kCudaManaged;
}

}  // namespace

Result::Result(perseus_handle_t handle, int32_t index) {
  perseus_result_t result{};
  result.struct_size = sizeof result;
  check(perseus_result(handle, index, &result));
  dtype_ = result.dtype;
  device_ = result.device;
  device_index_ = result.device_index;
  shape_.assign(result.shape, result.shape + result.rank);
  received_splits_.assign(result.received_splits,
                          result.received_splits + result.received_split_count);
  const bool empty = result.data == nullptr;
  memory_ = std::shared_ptr<void>(perseus_take_result(handle, index), Free());
  if (!memory_ && !empty) {
    raise_status(PERSEUS_INVALID_ARGUMENT, "result " + std::to_string(index) +
                                               " of the operation is in the caller's own "
                                               "output, or was taken already");
  }
}

void Result::Free::operator()(void* memory) const {
  if (!stream) return perseus_free(memory);
  perseus_free_on_stream(memory, reinterpret_cast<void*>(*stream));
}

void Result::free_on_stream(uintptr_t stream) { std::get_deleter<Free>(memory_)->stream = stream; }

py::tuple Result::shape() const { return to_tuple(shape_); }

py::tuple Result::received_splits() const { return to_tuple(received_splits_); }

dlpack::Device Result::dlpack_place() const {
  if (device_ == PERSEUS_CUDA) return {dlpack::kCuda, device_index_};
  return {dlpack::kCpu, 0};
}

py::tuple Result::dlpack_device() const {
  const dlpack::Device device = dlpack_place();
  return py::make_tuple(device.type, device.id);
}

Result Result::as_uint8() const {
  if (info_of(dtype_).bytes != 1) throw py::type_error("its elements are not one byte each");
  Result same = *this;
  same.dtype_ = PERSEUS_UINT8;
  return same;
}

py::dict Result::cuda_array_interface() const {
  const char* typestr = info_of(dtype_).typestr;
  if (device_ != PERSEUS_CUDA) throw py::attribute_error("the result is not on a GPU");
  if (!typestr) throw py::attribute_error("the array interface has no bfloat16; use DLPack");
  py::dict interface;
  interface["version"] = 3;
  interface["shape"] = shape();
  interface["typestr"] = typestr;
  interface["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(memory_.get()), false);
  interface["strides"] = py::none();
  interface["stream"] = py::none();  // the operation is complete: there is nothing to wait for
  return interface;
}

py::buffer_info Result::buffer() const {
  if (device_ == PERSEUS_CUDA) {
    throw py::buffer_error("the result is on GPU " + std::to_string(device_index_) +
                           ": take it through DLPack or __cuda_array_interface__");
  }
  return describe(memory_.get(), dtype_, shape_.data(), nullptr,
                  static_cast<int32_t>(shape_.size()), false);
}

py::capsule Result::dlpack(const py::object& max_version) const {
  const dlpack::Device device = dlpack_place();
  const bool versioned =
      !max_version.is_none() && max_version.cast<std::pair<int, int>>().first >= 1;
  if (!versioned) {
    return make_capsule(
        lend<dlpack::ManagedTensor>(memory_, shape_, dtype_, device), dlpack::kName,
        [](PyObject* capsule) { drop_capsule<dlpack::ManagedTensor>(capsule, dlpack::kName); });
  }
  auto* managed = lend<dlpack::ManagedTensorVersioned>(memory_, shape_, dtype_, device);
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
  if (!is_cpu(tensor.device) && !is_gpu(tensor.device)) {
    throw py::value_error("the tensor is on DLPack device " + std::to_string(tensor.device.type) +
                          "; only tensors on CPUs and CUDA GPUs can be used");
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

uintptr_t DlpackArray::address() const {
  return reinterpret_cast<uintptr_t>(tensor().data) + tensor().byte_offset;
}

bool DlpackArray::is_readonly() const {
  return versioned_ && (versioned_->flags & dlpack::kReadOnly);
}

py::tuple DlpackArray::shape() const {
  return to_tuple({tensor().shape, tensor().shape + tensor().rank});
}

py::object DlpackArray::strides() const {
  if (!tensor().strides) return py::none();
  return to_tuple({tensor().strides, tensor().strides + tensor().rank});
}

py::buffer_info DlpackArray::buffer() const {
  if (!is_cpu(device())) throw py::buffer_error("the tensor is on a GPU");
  return describe(static_cast<char*>(tensor().data) + tensor().byte_offset, dtype_, tensor().shape,
                  tensor().strides, tensor().rank, is_readonly());
}

void bind_arrays(py::module_& module) {
  py::class_<Result>(module, "Result", py::buffer_protocol())
      .def(py::init<perseus_handle_t, int32_t>(), py::arg("handle"), py::arg("index") = 0)
      .def_buffer(&Result::buffer)
      .def_property_readonly("dtype", &Result::dtype)
      .def_property_readonly("shape", &Result::shape)
      .def_property_readonly("received_splits", &Result::received_splits)
      .def_property_readonly("device", &Result::device)
      .def_property_readonly("device_index", &Result::device_index)
      .def_property_readonly("__cuda_array_interface__", &Result::cuda_array_interface)
      .def("free_on_stream", &Result::free_on_stream, py::arg("stream"))
      .def("as_uint8", &Result::as_uint8)
      // NumPy calls it if there is no buffer. Without it, NumPy would make an array of one object.
      .def("__array__",
           [](const Result& self, const py::args&, const py::kwargs&) -> py::object {
             throw py::type_error("the result is on GPU " + std::to_string(self.device_index()) +
                                  ", which NumPy cannot read");
           })
      .def(
          "__dlpack__",
          [](const Result& self, const py::object& stream, const py::object& max_version,
             const py::object& dl_device, const py::object& copy) {
            if (copy.ptr() == Py_True) {
              throw py::buffer_error("a result is passed on without a copy");
            }
            if (!dl_device.is_none() && !dl_device.equal(self.dlpack_device())) {
              throw py::buffer_error(
                  "a result is passed on where it is, and cannot move to another device");
            }
            return self.dlpack(max_version);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", &Result::dlpack_device);

  py::class_<DlpackArray>(module, "DlpackArray", py::buffer_protocol())
      .def(py::init<const py::capsule&>(), py::arg("capsule"))
      .def_buffer(&DlpackArray::buffer)
      .def_property_readonly("dtype", &DlpackArray::dtype)
      .def_property_readonly("shape", &DlpackArray::shape)
      .def_property_readonly("strides", &DlpackArray::strides)
      .def_property_readonly("address", &DlpackArray::address)
      .def_property_readonly("readonly", &DlpackArray::is_readonly)
      .def_property_readonly("device_index",
                             [](const DlpackArray& self) { return self.device().id; });
}

}  // namespace perseus::python
