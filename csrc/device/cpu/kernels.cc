#include "device/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <limits>

#include "device/cpu/dispatch.h"

namespace perseus {
namespace {

#if defined(__x86_64__)
// clang++ 14's __builtin_cpu_supports does not know this feature.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool can_run(const KernelTable& table) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (&table == &kAvx2Kernels) return avx2;
  if (&table == &kAvx512Kernels) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return &table == &kGenericKernels;
}

constexpr const KernelTable* kVariants[] = {
    &kGenericKernels,
#if defined(__x86_64__)
    &kAvx2Kernels,
    &kAvx512Kernels,
#endif
};

const KernelTable* best_variant() {
  const KernelTable* best = &kGenericKernels;
  for (const KernelTable* table : kVariants) {
    if (can_run(*table)) best = table;
  }
  return best;
}

std::atomic<const KernelTable*>& selected() {
  static std::atomic<const KernelTable*> table = best_variant();
  return table;
}

const KernelTable& kernels() { return *selected().load(std::memory_order_relaxed); }

KernelOp kernel_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin: return kKernelMin;
    case ReduceOp::kMax: return kKernelMax;
    case ReduceOp::kProduct: return kKernelProduct;
    case ReduceOp::kAverage:
    case ReduceOp::kSum: return kKernelSum;
    case ReduceOp::kBitwiseAnd: return kKernelAnd;
    case ReduceOp::kBitwiseOr: return kKernelOr;
    case ReduceOp::kBitwiseXor: return kKernelXor;
    case ReduceOp::kAdasum: break;
  }
  assert(false && "Adasum is not an element-wise reduction");
  return kKernelSum;
}

KernelFloat kernel_float(DataType type) {
  switch (type) {
    case DataType::kFloat16: return kKernelFloat16;
    case DataType::kBfloat16: return kKernelBfloat16;
    case DataType::kFloat32: return kKernelFloat32;
    default: break;
  }
  assert(type == DataType::kFloat64 && "only floating types are converted");
  return kKernelFloat64;
}

bool is_16_bit_float(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16;
}

void copy(void* target, const void* source, size_t bytes) {
  if (target != source && bytes != 0) std::memmove(target, source, bytes);
}

template <typename T>
T identity(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kMin: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kProduct: return T{1};
    case ReduceOp::kBitwiseAnd:
      if constexpr (Limits::is_integer) return static_cast<T>(~T{0});
      [[fallthrough]];
    default: return T{0};
  }
}

// The identity of a 16-bit float, as bits: `one` and `infinity` differ between the two formats.
uint16_t identity_bits(ReduceOp op, uint16_t one, uint16_t infinity) {
  switch (op) {
    case ReduceOp::kMin: return infinity;
    case ReduceOp::kMax: return infinity | 0x8000;
    case ReduceOp::kProduct: return one;
    default: return 0;
  }
}

template <typename T>
void fill(void* target, size_t elements, T value) {
  std::fill_n(static_cast<T*>(target), elements, value);
}

}  // namespace

std::vector<std::string_view> available_instruction_sets() {
  std::vector<std::string_view> names;
  for (const KernelTable* table : kVariants) {
    if (can_run(*table)) names.push_back(table->name);
  }
  return names;
}

bool select_instruction_set(std::string_view name) {
  for (const KernelTable* table : kVariants) {
    if (name == table->name && can_run(*table)) {
      selected().store(table, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

void add_products(const void* a, const void* b, size_t elements, DataType type, double* products) {
  kernels().add_products[type == DataType::kFloat64](a, b, elements, products);
}

void combine(void* a, const void* b, size_t elements, DataType type, double factor_a,
             double factor_b) {
  kernels().combine[type == DataType::kFloat64](a, b, elements, factor_a, factor_b);
}

std::string_view instruction_set() { return kernels().name; }

Reduction reduction(DataType type, ReduceOp op) {
  const uint32_t size = size_of(type);
  return {kernels().reduce[static_cast<int>(type)][kernel_op(op)], size, size};
}

Reduction wide_reduction(DataType type, ReduceOp op) {
  if (!is_16_bit_float(type)) return reduction(type, op);
  return {kernels().wide_reduce[kernel_float(type)][kernel_op(op)], sizeof(uint16_t),
          sizeof(float)};
}

DataType accumulator_type(DataType type) {
  return is_16_bit_float(type) ? DataType::kFloat32 : type;
}

void convert(void* target, DataType to, const void* source, DataType from, size_t elements) {
  scale_convert(target, to, source, from, elements, 1.0);
}

void scale(void* target, const void* source, size_t elements, DataType type, double factor) {
  if (factor == 1.0) {
    copy(target, source, elements * size_of(type));
  } else if (is_floating(type)) {
    const KernelFloat format = kernel_float(type);
    kernels().scale_convert[format][format](target, source, elements, factor);
  } else if (type != DataType::kBool) {
    kernels().scale_integer[static_cast<int>(type)](target, source, elements, factor);
  } else if (factor == 0.0) {
    fill<uint8_t>(target, elements, 0);
  } else {
    copy(target, source, elements);
  }
}

void scale_convert(void* target, DataType to, const void* source, DataType from, size_t elements,
                   double factor) {
  if (to == from) {
    scale(target, source, elements, to, factor);
  } else {
    kernels().scale_convert[kernel_float(to)][kernel_float(from)](target, source, elements, factor);
  }
}

void fill_identity(void* target, size_t elements, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kUint8: return fill(target, elements, identity<uint8_t>(op));
    case DataType::kInt8: return fill(target, elements, identity<int8_t>(op));
    case DataType::kUint16: return fill(target, elements, identity<uint16_t>(op));
    case DataType::kInt16: return fill(target, elements, identity<int16_t>(op));
    case DataType::kInt32: return fill(target, elements, identity<int32_t>(op));
    case DataType::kInt64: return fill(target, elements, identity<int64_t>(op));
    case DataType::kFloat16: return fill(target, elements, identity_bits(op, 0x3c00, 0x7c00));
    case DataType::kBfloat16: return fill(target, elements, identity_bits(op, 0x3f80, 0x7f80));
    case DataType::kFloat32: return fill(target, elements, identity<float>(op));
    case DataType::kFloat64: return fill(target, elements, identity<double>(op));
    case DataType::kBool: {
      const bool is_and =
          op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kBitwiseAnd;
      return fill<uint8_t>(target, elements, is_and);
    }
  }
}

size_t find_non_finite(const void* data, size_t elements, DataType type) {
  if (!is_floating(type)) return elements;
  return kernels().find_non_finite[kernel_float(type)](data, elements);
}

void copy_tensor(void* target, const void* source, size_t elements, DataType type) {
  kernels().copy(target, source, elements * size_of(type));
}

bool copy_finite(void* target, const void* source, size_t elements, DataType type) {
  if (is_floating(type)) {
    return kernels().copy_finite[kernel_float(type)](target, source, elements);
  }
  copy_tensor(target, source, elements, type);
  return true;
}

}  // namespace perseus
