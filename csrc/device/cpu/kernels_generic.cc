#define PERSEUS_KERNEL_TABLE kGenericKernels
#define PERSEUS_KERNEL_NAME "generic"
#include "device/cpu/kernels_impl.inc"
