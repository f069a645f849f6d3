// Where the tensors of an operation are, if the caller says that they are on a GPU.
#pragma once

#include <string>

#include "device/cuda/gpu.h"
#include "state/operation.h"

namespace perseus {

// Returns GPU `index` of this process; for -1, the one with the first tensor that has elements.
// `folders`: see load_cuda.
Result<Gpu*> find_gpu(const Operation& operation, const std::string& folders, int index);
// Puts the operation on the GPU. Its tensors are ready after the work that is in the stream now; at
// once if that is PERSEUS_NO_STREAM. Needs a CurrentContext.
Status place_on_gpu(Operation& operation, Gpu& gpu, void* stream);

}  // namespace perseus
