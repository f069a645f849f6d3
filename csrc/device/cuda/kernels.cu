// The kernels, with the names by which the driver finds them. Compiled to one image for several
// architectures (cmake/cuda_kernels.cmake). Needs no CUDA headers beyond those that nvcc includes
// by itself.
#include <cstdint>

#define PERSEUS_DEVICE __device__ __forceinline__
#define PERSEUS_UNROLL _Pragma("unroll")
#define PERSEUS_FOUND_MIN(at, value) atomicMin(at, value)

namespace perseus {
namespace {

PERSEUS_DEVICE float float_of_float16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

PERSEUS_DEVICE uint16_t float16_of_float(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

PERSEUS_DEVICE uint16_t bfloat16_of_float(float value) {
#if __CUDA_ARCH__ >= 800
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = __float_as_uint(value);
  return value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#endif
}

// In assembly, since the compiler knows neither that this is global memory nor that one wide load
// is better than several narrow ones. Volatile, so that all loads stay before the first use.
PERSEUS_DEVICE void load_words(uint32_t (&words)[4], uint64_t address) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address));
}
PERSEUS_DEVICE void load_words(uint32_t (&words)[2], uint64_t address) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "l"(address));
}
PERSEUS_DEVICE void load_words(uint32_t (&words)[1], uint64_t address) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(address));
}

PERSEUS_DEVICE void store_words(uint64_t address, const uint32_t (&words)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
PERSEUS_DEVICE void store_words(uint64_t address, const uint32_t (&words)[2]) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1])
               : "memory");
}
PERSEUS_DEVICE void store_words(uint64_t address, const uint32_t (&words)[1]) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
}

}  // namespace
}  // namespace perseus

#include "device/cuda/moves_kernels.inc"

#define PERSEUS_KERNEL(name, From, To)                                           \
  extern "C" __global__ void __launch_bounds__(perseus::kMoveThreads)            \
      name(const __grid_constant__ perseus::MoveTable table) {                   \
    using namespace perseus;                                                     \
    move_block<From, To>(table, blockIdx.x, threadIdx.x);                        \
  }
PERSEUS_MOVE_KERNELS(PERSEUS_KERNEL)

extern "C" __global__ void __launch_bounds__(perseus::kMoveThreads)
    perseus_copy(const __grid_constant__ perseus::MoveTable table) {
  perseus::copy_block(table, blockIdx.x, threadIdx.x);
}
