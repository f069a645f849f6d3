// Element-wise operations on CPU memory: reduce, scale, convert, search for NaN. The widest
// instruction set that the processor has (AVX-512, AVX2 + F16C, or plain C++) is chosen once at run
// time. Pure functions; any thread. Pointers need no alignment beyond the element's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/reduction.h"
#include "base/types.h"

namespace perseus {

// accumulator op= arriving, both of `type` (16-bit floats: computed in float32, rounded to `type`).
// bool: sum and max are "or", product and min are "and". Integers wrap. Operations on bits take
// integers and bool.
Reduction reduction(DataType type, ReduceOp op);
// The same, but accumulates 16-bit floats as float32; for other types equal to reduction().
Reduction wide_reduction(DataType type, ReduceOp op);
// The type that wide_reduction accumulates in: float32 for float16 and bfloat16, else `type`.
DataType accumulator_type(DataType type);

// Converts each element, rounding to nearest even. Overflow gives infinity; NaN stays NaN. Only
// between floating types, or from a type to itself (a copy).
void convert(void* target, DataType to, const void* source, DataType from, size_t elements);

// target[i] = source[i] * factor. Horovod's arithmetic: integers in float64, truncated toward zero;
// float16 and bfloat16 in float32; float32 with the factor as float32; bool unchanged unless the
// factor is 0. source may equal target. A factor of 1 copies.
void scale(void* target, const void* source, size_t elements, DataType type, double factor);

// Scales and converts in one pass: target[i] = to(source[i] * factor), rounded once. Only between
// floating types, or from a type to itself, as scale().
void scale_convert(void* target, DataType to, const void* source, DataType from, size_t elements,
                   double factor);

// Fills the target with the identity of the reduction (0 for sums and Adasum, the type's largest
// value for min, ...).
void fill_identity(void* target, size_t elements, DataType type, ReduceOp op);

// Returns the index of the first NaN or infinity, or `elements` if there is none (as for integers).
size_t find_non_finite(const void* data, size_t elements, DataType type);
// Like memcpy. Faster than the C library's for tensors that are not in the cache.
void copy_tensor(void* target, const void* source, size_t elements, DataType type);
// The same; returns whether all elements are finite (integers are).
bool copy_finite(void* target, const void* source, size_t elements, DataType type);

// For float32 and float64, computed in float64. products[0..2] += the sums of a[i] * b[i],
// a[i] * a[i] and b[i] * b[i].
void add_products(const void* a, const void* b, size_t elements, DataType type, double* products);
// a[i] = a[i] * factor_a + b[i] * factor_b
void combine(void* a, const void* b, size_t elements, DataType type, double factor_a,
             double factor_b);

// The instruction set that was chosen: "avx512", "avx2" or "generic".
std::string_view instruction_set();

}  // namespace perseus
