#include "execution/results.h"

#include <string>

#include "base/large_memory.h"

namespace perseus {
namespace {

bool takes_offer(OperationTensor& tensor, uint64_t bytes) {
  if (tensor.offered == nullptr || tensor.offered_bytes != bytes) return false;
  tensor.output = tensor.offered;
  return true;
}

}  // namespace

Status allocate_outputs(Operation& operation, int set_size, int set_index) {
  const Description& description = operation.description;
  if (is_uneven(description.kind)) return {};  // known when the ranks have exchanged their sizes
  for (size_t t = 0; t < operation.tensors.size(); ++t) {
    OperationTensor& tensor = operation.tensors[t];
    tensor.result_shape = description.tensors[t].shape;
    if (description.kind == OperationKind::kReduceScatter) {
      tensor.result_shape[0] = rows_of(tensor.result_shape[0], set_size, set_index);
    }
    if (tensor.output != nullptr) continue;
    uint64_t bytes = size_of(description.tensors[t].dtype);
    for (int64_t extent : tensor.result_shape) bytes *= static_cast<uint64_t>(extent);
    if (operation.gpu != nullptr) {
      PERSEUS_RETURN_IF_ERROR(allocate_output(tensor, bytes, *operation.gpu));
    } else {
      PERSEUS_RETURN_IF_ERROR(allocate_output(tensor, bytes));
    }
  }
  return {};
}

Status allocate_output(OperationTensor& tensor, uint64_t bytes) {
  if (bytes == 0 || takes_offer(tensor, bytes)) return {};
  tensor.allocated.reset(allocate_large(bytes));
  tensor.output = tensor.allocated.get();
  if (tensor.output == nullptr) {
    return Status::out_of_memory("no memory for a result of " + std::to_string(bytes) + " bytes");
  }
  return {};
}

Status allocate_output(OperationTensor& tensor, uint64_t bytes, Gpu& gpu) {
  if (bytes == 0 || takes_offer(tensor, bytes)) return {};
  const auto allocated = gpu.allocate(bytes);
  PERSEUS_RETURN_IF_ERROR(allocated.status());
  tensor.output = allocated.value();
  tensor.allocated.reset(tensor.output);
  return {};
}

void set_result_rows(OperationTensor& tensor, const TensorDescription& agreed, int64_t rows) {
  tensor.result_shape = agreed.shape;
  tensor.result_shape[0] = rows;
}

int64_t rows_of(int64_t rows, int size, int index) {
  return rows / size + (index < rows % size ? 1 : 0);
}

uint64_t row_bytes(const TensorDescription& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (size_t d = 1; d < tensor.shape.size(); ++d) bytes *= static_cast<uint64_t>(tensor.shape[d]);
  return bytes;
}

}  // namespace perseus
