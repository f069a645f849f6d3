#define PERSEUS_KERNEL_TABLE kAvx2Kernels
#define PERSEUS_KERNEL_NAME "avx2"
#include "device/cpu/kernels_impl.inc"
