// Errors of CUDA's driver as Status values.
#pragma once

#include <string_view>

#include "base/status.h"
#include "device/cuda/driver.h"

namespace perseus {

// `what` was being done, as "loading the kernels". Out of memory becomes kOutOfMemory, every other
// error kInternal; success is ok. Any thread.
Status cuda_status(const CudaDriver& driver, CuResult result, std::string_view what);

}  // namespace perseus
