// The kernels of kernels.cu, compiled by nvcc for several architectures and embedded in this
// library.
#pragma once

#include <cstddef>
#include <span>

namespace perseus {

// For CudaDriver::load_module; lives as long as the process. Empty if Perseus was built without
// nvcc. Any thread.
std::span<const std::byte> kernels_image();

}  // namespace perseus
