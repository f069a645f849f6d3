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

// A result that the engine allocated. Python sees it through DLPack and, on a CPU, the buffer
// protocol, on a GPU the array interface for CUDA. The memory goes back to the engine with the last
// of the Result and the tensors taken from it; a GPU's waits for what streams still do with it,
// which is all that the GPU has to do unless one stream was named.
class Result {
 public:
  // Takes result `index` of a complete operation over; raises if there is none.
  Result(perseus_handle_t handle, int32_t index);

  perseus_dtype_t dtype() const { return dtype_; }
  pybind11::tuple shape() const;
  pybind11::tuple received_splits() const;
  perseus_device_t device() const { return device_; }
  int32_t device_index() const { return device_index_; }
  // Names the one stream that will have used the memory; see perseus_free_on_stream.
  void free_on_stream(uintptr_t stream);
  // Raises BufferError for memory of a GPU, which a CPU must not touch.
  pybind11::buffer_info buffer() const;
  // Version 3; raises AttributeError for what it cannot describe, as objects without it do.
  pybind11::dict cuda_array_interface() const;
  pybind11::tuple dlpack_device() const;
  // The memory of booleans as uint8, for consumers whose DLPack does not know them.
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

// Somebody else's tensor, taken from a DLPack capsule: in CPU memory, as a Python buffer, or on a
// GPU, by its address. The producer gets it back with the end of this object.
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
