#define PERSEUS_KERNEL_TABLE kAvx512Kernels
#define PERSEUS_KERNEL_NAME "avx512"
#include "device/cpu/kernels_impl.inc"
