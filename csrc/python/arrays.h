// Memory that crosses between Python and the engine without a copy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "perseus/perseus.h"
#include "python/dlpack.h"

namespace perseus::python {

// A result that the engine allocated. Python sees it through the buffer protocol and DLPack; the
// memory goes back to the engine with the last of the Result and the tensors taken from it.
class Result {
 public:
  // Takes result `index` of a complete operation over; raises if there is none.
  Result(perseus_handle_t handle, int32_t index);

  perseus_dtype_t dtype() const { return dtype_; }
  pybind11::tuple shape() const;
  pybind11::tuple received_splits() const;
  pybind11::buffer_info buffer() const;
  // `max_version` is (major, minor) of the newest DLPack the caller knows, or None.
  pybind11::capsule dlpack(const pybind11::object& max_version) const;

 private:
  std::shared_ptr<void> memory_;  // freed by perseus_free
  std::vector<int64_t> shape_;
  std::vector<int64_t> received_splits_;
  perseus_dtype_t dtype_ = PERSEUS_UINT8;
};

// Somebody else's tensor in CPU memory, taken from a DLPack capsule, as a Python buffer. The
// producer gets it back with the end of this object.
class DlpackArray {
 public:
  explicit DlpackArray(const pybind11::capsule& capsule);
  ~DlpackArray();
  DlpackArray(const DlpackArray&) = delete;
  DlpackArray& operator=(const DlpackArray&) = delete;

  perseus_dtype_t dtype() const { return dtype_; }
  pybind11::buffer_info buffer() const;

 private:
  // Exactly one of the two is set.
  dlpack::ManagedTensor* managed_ = nullptr;
  dlpack::ManagedTensorVersioned* versioned_ = nullptr;
  perseus_dtype_t dtype_ = PERSEUS_UINT8;
};

void bind_arrays(pybind11::module_& module);

}  // namespace perseus::python
