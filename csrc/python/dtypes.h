// Element types as their users' protocols name them: PEP 3118 formats and DLPack codes.
#pragma once

#include <optional>

#include "perseus/perseus.h"
#include "python/dlpack.h"

namespace perseus::python {

struct DtypeInfo {
  perseus_dtype_t dtype;
  int32_t bytes;
  const char* format;  // PEP 3118; it has no bfloat16, whose bits are shown as uint16
  uint8_t dlpack_code;
};

// In the order of perseus_dtype_t.
inline constexpr DtypeInfo kDtypes[] = {
    {PERSEUS_UINT8, 1, "B", dlpack::kUint},      {PERSEUS_INT8, 1, "b", dlpack::kInt},
    {PERSEUS_UINT16, 2, "H", dlpack::kUint},     {PERSEUS_INT16, 2, "h", dlpack::kInt},
    {PERSEUS_INT32, 4, "i", dlpack::kInt},       {PERSEUS_INT64, 8, "q", dlpack::kInt},
    {PERSEUS_FLOAT16, 2, "e", dlpack::kFloat},   {PERSEUS_FLOAT32, 4, "f", dlpack::kFloat},
    {PERSEUS_FLOAT64, 8, "d", dlpack::kFloat},   {PERSEUS_BOOL, 1, "?", dlpack::kBool},
    {PERSEUS_BFLOAT16, 2, "H", dlpack::kBfloat},
};

inline const DtypeInfo& info_of(perseus_dtype_t dtype) { return kDtypes[dtype]; }

// Nothing if DLPack's type is one that Perseus does not have.
inline std::optional<perseus_dtype_t> from_dlpack(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  for (const DtypeInfo& info : kDtypes) {
    if (info.dlpack_code == type.code && info.bytes * 8 == type.bits) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace perseus::python
