// Memory that crosses between Python and the engine without a copy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dlpack/abi.h"
#include "perseus/perseus.h"

namespace perseus::python {

// A result that the engine allocated. Python sees it through DLPack, and through the buffer
// protocol on a CPU or CUDA's array interface on a GPU. The memory goes back to the engine with the
// last of the Result and the tensors taken from it. On a GPU that waits for the one stream that was
// named, or else until the GPU is idle.
class Result {
 public:
  // Takes over result `index` of a complete operation; raises if there is none.
  Result(perseus_handle_t handle, int32_t index);

  perseus_dtype_t dtype() const { return dtype_; }
  pybind11::tuple shape() const;
  pybind11::tuple received_splits() const;
  perseus_device_t device() const { return device_; }
  int32_t device_index() const { return device_index_; }
  // Names the only stream that uses the memory; see perseus_free_on_stream.
  void free_on_stream(uintptr_t stream);
  // Raises BufferError for memory on a GPU, which a CPU must not touch.
  pybind11::buffer_info buffer() const;
  // Version 3. Raises AttributeError, as if there were no such attribute, for what it cannot
  // describe.
  pybind11::dict cuda_array_interface() const;
  pybind11::tuple dlpack_device() const;
  // The same memory as uint8, for consumers whose DLPack does not know booleans.
  Result as_uint8() const;
  // `max_version` is (major, minor) of the newest DLPack the caller knows, or None.
  pybind11::capsule dlpack(const pybind11::object& max_version) const;

 private:
  struct Free {
    std::optional<uintptr_t> stream;
    void operator()(void* memory) const;
  };

  dlpack::Device dlpack_place() const;

  std::shared_ptr<void> memory_;  // with a Free
  std::vector<int64_t> shape_;
  std::vector<int64_t> received_splits_;
  perseus_device_t device_ = PERSEUS_CPU;
  int32_t device_index_ = -1;
  perseus_dtype_t dtype_ = PERSEUS_UINT8;
};

// Another library's tensor, taken from a DLPack capsule: a Python buffer if it is in CPU memory, an
// address if it is on a GPU. The producer gets it back when this object ends.
class DlpackArray {
 public:
  explicit DlpackArray(const pybind11::capsule& capsule);
  ~DlpackArray();
  DlpackArray(const DlpackArray&) = delete;
  DlpackArray& operator=(const DlpackArray&) = delete;

  perseus_dtype_t dtype() const { return dtype_; }
  dlpack::Device device() const { return tensor().device; }
  uintptr_t address() const;
  bool is_readonly() const;
  pybind11::tuple shape() const;
  // In elements; None for row-major.
  pybind11::object strides() const;
  pybind11::buffer_info buffer() const;

 private:
  const dlpack::Tensor& tensor() const {
    return versioned_ ? versioned_->tensor : managed_->tensor;
  }

  // Exactly one of the two is set.
  dlpack::ManagedTensor* managed_ = nullptr;
  dlpack::ManagedTensorVersioned* versioned_ = nullptr;
  perseus_dtype_t dtype_ = PERSEUS_UINT8;
};

void bind_arrays(pybind11::module_& module);

}  // namespace perseus::python
