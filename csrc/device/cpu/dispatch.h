// Chooses which of the compiled variants of the kernels runs. For device/cpu and its tests.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace perseus {

// Positions in KernelTable's rows.
enum KernelOp {
  kKernelSum,
  kKernelMin,
  kKernelMax,
  kKernelProduct,
  kKernelAnd,
  kKernelOr,
  kKernelXor,
  kKernelOpCount
};
enum KernelFloat {
  kKernelFloat16,
  kKernelBfloat16,
  kKernelFloat32,
  kKernelFloat64,
  kKernelFloatCount
};

using ReduceKernel = void (*)(void* accumulator, const void* arriving, size_t elements);
using ScaleKernel = void (*)(void* target, const void* source, size_t elements, double factor);
using FindKernel = size_t (*)(const void* data, size_t elements);
using CopyFiniteKernel = bool (*)(void* target, const void* source, size_t elements);
using CopyKernel = void (*)(void* target, const void* source, size_t bytes);
using ProductsKernel = void (*)(const void* a, const void* b, size_t elements, double* products);
using CombineKernel = void (*)(void* a, const void* b, size_t elements, double factor_a,
                               double factor_b);

// The kernels as compiled for one instruction set.
struct KernelTable {
  const char* name;
  ReduceKernel reduce[kDataTypeCount][kKernelOpCount];  // by DataType; null: bits of floats
  ReduceKernel wide_reduce[2][kKernelOpCount];          // float16, bfloat16 into float32
  ScaleKernel scale_convert[kKernelFloatCount][kKernelFloatCount];  // [to][from]
  ScaleKernel scale_integer[kDataTypeCount];                        // null for floating types
  FindKernel find_non_finite[kKernelFloatCount];
  CopyFiniteKernel copy_finite[kKernelFloatCount];
  CopyKernel copy;
  ProductsKernel add_products[2];  // float32, float64
  CombineKernel combine[2];        // float32, float64
};

extern const KernelTable kGenericKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

// The instruction sets that this processor can run, the simplest first.
std::vector<std::string_view> available_instruction_sets();
// For tests: makes later calls use the variant of that name. Returns false if it cannot run here.
bool select_instruction_set(std::string_view name);

}  // namespace perseus
