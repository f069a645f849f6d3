#include "device/cuda/kernels_image.h"

// PERSEUS_KERNELS_IMAGE is the image's path, in quotes; it is not defined without nvcc. The
// assembler includes the file, since a compiler is slow with such a large array. The driver wants
// it aligned.
#ifdef PERSEUS_KERNELS_IMAGE
__asm__(
    ".pushsection .rodata.perseus_kernels_image, \"a\", @progbits\n"
    ".balign 64\n"
    "perseus_kernels_image_begin:\n"
    ".incbin \"" PERSEUS_KERNELS_IMAGE
    "\"\n"
    "perseus_kernels_image_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const std::byte perseus_kernels_image_begin[];
[[gnu::visibility("hidden")]] extern const std::byte perseus_kernels_image_end[];
}
#endif

namespace perseus {

std::span<const std::byte> kernels_image() {
#ifdef PERSEUS_KERNELS_IMAGE
  return {perseus_kernels_image_begin, perseus_kernels_image_end};
#else
  return {};
#endif
}

}  // namespace perseus
