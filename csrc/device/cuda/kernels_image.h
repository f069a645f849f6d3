// The compiled kernels that lie within this library: what nvcc made of kernels.cu, for several
// architectures.
#pragma once

#include <cstddef>
#include <span>

namespace perseus {

// For CudaDriver::load_module; lives as long as the process. Empty if Perseus was built without
// nvcc. Any thread.
std::span<const std::byte> kernels_image();

}  // namespace perseus
