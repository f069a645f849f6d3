// Converts errors of the CUDA driver to Status values.
#pragma once

#include <string_view>

#include "base/status.h"
#include "device/cuda/driver.h"

namespace perseus {

// `what` says what was being done: "loading the kernels". An out-of-memory error becomes
// kOutOfMemory, every other error kInternal. Any thread.
Status cuda_status(const CudaDriver& driver, CuResult result, std::string_view what);

}  // namespace perseus
