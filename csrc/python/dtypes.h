// Element types in the terms of each protocol: PEP 3118 formats, the array interface's strings and
// DLPack codes.
#pragma once

#include <optional>

#include "dlpack/abi.h"
#include "perseus/perseus.h"

namespace perseus::python {

struct DtypeInfo {
  perseus_dtype_t dtype;
  int32_t bytes;
  const char* format;   // PEP 3118, which has no bfloat16: its bits are shown as uint16
  const char* typestr;  // of the array interface; null: no such type
  uint8_t dlpack_code;
};

// In the order of perseus_dtype_t.
inline constexpr DtypeInfo kDtypes[] = {
    {PERSEUS_UINT8, 1, "B", "|u1", dlpack::kUint},
    {PERSEUS_INT8, 1, "b", "|i1", dlpack::kInt},
    {PERSEUS_UINT16, 2, "H", "<u2", dlpack::kUint},
    {PERSEUS_INT16, 2, "h", "<i2", dlpack::kInt},
    {PERSEUS_INT32, 4, "i", "<i4", dlpack::kInt},
    {PERSEUS_INT64, 8, "q", "<i8", dlpack::kInt},
    {PERSEUS_FLOAT16, 2, "e", "<f2", dlpack::kFloat},
    {PERSEUS_FLOAT32, 4, "f", "<f4", dlpack::kFloat},
    {PERSEUS_FLOAT64, 8, "d", "<f8", dlpack::kFloat},
    {PERSEUS_BOOL, 1, "?", "|b1", dlpack::kBool},
    {PERSEUS_BFLOAT16, 2, "H", nullptr, dlpack::kBfloat},
};

inline const DtypeInfo& info_of(perseus_dtype_t dtype) { return kDtypes[dtype]; }

// Returns nothing for a type that Perseus does not have.
inline std::optional<perseus_dtype_t> from_dlpack(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  for (const DtypeInfo& info : kDtypes) {
    if (info.dlpack_code == type.code && info.bytes * 8 == type.bits) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace perseus::python
