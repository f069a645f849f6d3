// The part of DLPack's binary interface (dmlc.github.io/dlpack), versions 0 and 1, that is needed
// to exchange tensors in the memory of CPUs and GPUs.
#pragma once

#include <cstdint>

#include "perseus/perseus.h"

namespace perseus::dlpack {

inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;
inline constexpr int32_t kCudaHost = 3;  // pinned host memory
inline constexpr int32_t kCudaManaged = 13;

inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUint = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;
inline constexpr uint8_t kBool = 6;

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null for row-major
  uint64_t byte_offset;
};

// In a capsule named "dltensor", which the consumer renames "used_dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr uint64_t kReadOnly = 1;

// In a capsule named "dltensor_versioned", which the consumer renames "used_dltensor_versioned".
struct ManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

inline constexpr char kName[] = "dltensor";
inline constexpr char kUsedName[] = "used_dltensor";
inline constexpr char kVersionedName[] = "dltensor_versioned";
inline constexpr char kUsedVersionedName[] = "used_dltensor_versioned";

}  // namespace perseus::dlpack
