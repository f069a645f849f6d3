#include "engine/agreed_checks.h"

#include <algorithm>
#include <string>

namespace perseus {

Status check_agreed(const Agreement::Ready& ready, const std::vector<int32_t>& joined) {
  const Description& description = ready.description();
  const auto because = [&](const std::string& what) {
    return Status::unsupported(title(ready.key()) + ": " + what);
  };
  if (is_uneven(description.kind) || description.kind == OperationKind::kReduceScatter) {
    for (const TensorDescription& tensor : description.tensors) {
      if (tensor.shape.empty()) {
        return because("a scalar has no first dimension; submit a tensor of one element");
      }
    }
  }
  if (description.kind == OperationKind::kReduceScatter &&
      description.reduce_op == ReduceOp::kAdasum) {
    return because("op adasum is one of allreduce");
  }
  if (is_reduction(description.kind) && is_bitwise(description.reduce_op)) {
    for (const TensorDescription& tensor : description.tensors) {
      if (!is_floating(tensor.dtype)) continue;
      return because("op " + std::string(to_string(description.reduce_op)) +
                     " takes integers and bool, and this is " +
                     std::string(to_string(tensor.dtype)));
    }
  }
  if (description.kind == OperationKind::kAllreduce && description.reduce_op == ReduceOp::kAdasum) {
    for (const TensorDescription& tensor : description.tensors) {
      if (is_floating(tensor.dtype)) continue;
      return because("op adasum takes floating types, and this is " +
                     std::string(to_string(tensor.dtype)));
    }
  }
  if (description.kind == OperationKind::kBroadcast &&
      std::find(joined.begin(), joined.end(), description.root) != joined.end()) {
    return because("its root, rank " + std::to_string(description.root) +
                   ", has joined and has nothing to send");
  }
  return {};
}

}  // namespace perseus
