#include "device/cuda/kernels_image.h"

// PERSEUS_KERNELS_IMAGE: the image's path, in quotes; not defined without nvcc. By the assembler,
// since a compiler takes long over an array of so many bytes. The driver wants it aligned.
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
