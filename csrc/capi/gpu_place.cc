#include "capi/gpu_place.h"

#include <utility>

#include "perseus/perseus.h"

namespace perseus {

Result<Gpu*> find_gpu(const Operation& operation, const std::string& folders, int index) {
  if (index >= 0) return Gpu::get(folders, index);
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    if (operation.description.tensors[t].elements() == 0) continue;
    const OperationTensor& tensor = operation.tensors[t];
    return Gpu::of_memory(folders, tensor.input != nullptr ? tensor.input : tensor.output);
  }
  return Gpu::get(folders, 0);
}

Status place_on_gpu(Operation& operation, Gpu& gpu, void* stream) {
  if (stream != PERSEUS_NO_STREAM) {
    auto ready = gpu.record(static_cast<CuStream>(stream));
    if (!ready.is_ok()) return ready.status();
    operation.ready = std::move(ready).value();
  }
  operation.gpu = &gpu;
  operation.description.device = DeviceKind::kCuda;
  return {};
}

}  // namespace perseus
