// The element types and reductions of the whole engine, and their names and sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace perseus {

// The numbers are those of perseus_dtype_t in perseus.h and go over the wire.
enum class DataType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
};
inline constexpr int kDataTypeCount = 11;

// The numbers are Horovod's, so that scripts that compare with them keep working.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBitwiseAnd = 6,
  kBitwiseOr = 7,
  kBitwiseXor = 8
};
inline constexpr ReduceOp kLastReduceOp = ReduceOp::kBitwiseXor;

// Where tensors live. The numbers are those of perseus_device_t and go over the wire.
enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool: return 1;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBfloat16: return 2;
    case DataType::kInt32:
    case DataType::kFloat32: return 4;
    case DataType::kInt64:
    case DataType::kFloat64: return 8;
  }
  return 0;
}

constexpr bool is_floating(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

// Returns whether the reduction is one of bits, which takes integers and bool.
constexpr bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitwiseAnd || op == ReduceOp::kBitwiseOr || op == ReduceOp::kBitwiseXor;
}

constexpr std::string_view to_string(DataType type) {
  switch (type) {
    case DataType::kUint8: return "uint8";
    case DataType::kInt8: return "int8";
    case DataType::kUint16: return "uint16";
    case DataType::kInt16: return "int16";
    case DataType::kInt32: return "int32";
    case DataType::kInt64: return "int64";
    case DataType::kFloat16: return "float16";
    case DataType::kFloat32: return "float32";
    case DataType::kFloat64: return "float64";
    case DataType::kBool: return "bool";
    case DataType::kBfloat16: return "bfloat16";
  }
  return "unknown";
}

constexpr std::string_view to_string(DeviceKind device) {
  return device == DeviceKind::kCuda ? "a GPU" : "the CPU";
}

constexpr std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAdasum: return "adasum";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kBitwiseAnd: return "bitwise and";
    case ReduceOp::kBitwiseOr: return "bitwise or";
    case ReduceOp::kBitwiseXor: return "bitwise xor";
  }
  return "unknown";
}

}  // namespace perseus
