#include "capi/checked_submission.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/recycler.h"
#include "base/settings.h"
#include "capi/gpu_place.h"
#include "codec/codec.h"
#include "execution/results.h"

namespace perseus {
namespace {

// The most bytes that a tensor may have. Some exceed the memory, as they are mapped from files or
// sparse; a shape read from garbage is far larger still.
int64_t most_bytes() {
  static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return 64 * memory;
}

Status wrong_call(const Names::Entry& name, const std::string& what) {
  return Status::invalid_argument(title(name.key) + ": " + what);
}

class Checker {
 public:
  Checker(const perseus_submission_t& submission, const Names::Entry& name,
          const std::vector<int>& set_ranks, const Engine& engine)
      : submission_(submission), name_(name), set_ranks_(set_ranks), engine_(engine) {}

  Result<OperationPtr> run() {
    operation_->name_id = submission_.id;
    operation_->process_set = name_.process_set;
    operation_->key = name_.key;
    Description& description = operation_->description;
    description.kind = name_.kind;
    description.priority = submission_.priority;
    PERSEUS_RETURN_IF_ERROR(about(check_callback_thread(submission_.callback_thread)));
    if (name_.kind == OperationKind::kBarrier || name_.kind == OperationKind::kJoin) {
      return std::move(operation_);
    }
    if (submission_.device != PERSEUS_CPU && submission_.device != PERSEUS_CUDA) {
      return wrong("there is no kind of device " + std::to_string(submission_.device));
    }
    PERSEUS_RETURN_IF_ERROR(take_tensors());
    if (is_reduction(name_.kind)) PERSEUS_RETURN_IF_ERROR(take_reduction());
    if (name_.kind == OperationKind::kBroadcast) PERSEUS_RETURN_IF_ERROR(take_root());
    if (name_.kind == OperationKind::kAlltoall) PERSEUS_RETURN_IF_ERROR(take_splits());
    if (submission_.device == PERSEUS_CUDA) PERSEUS_RETURN_IF_ERROR(take_gpu());
    return std::move(operation_);
  }

 private:
  Status wrong(const std::string& what) const { return wrong_call(name_, what); }

  Status take_tensors() {
    if (submission_.tensor_count < 1 || submission_.tensors == nullptr) {
      return wrong("it needs at least one tensor");
    }
    if (name_.kind == OperationKind::kAlltoall && submission_.tensor_count != 1) {
      return wrong("it takes one tensor, not " + std::to_string(submission_.tensor_count));
    }
    if (submission_.offered != nullptr && !is_uneven(name_.kind)) {
      return wrong("only an allgather or an alltoall takes offered memory; pass an output");
    }
    for (int32_t t = 0; t < submission_.tensor_count; ++t) {
      PERSEUS_RETURN_IF_ERROR(take_tensor(submission_.tensors[t]));
      if (submission_.offered == nullptr) continue;
      operation_->tensors.back().offered = static_cast<std::byte*>(submission_.offered[t].data);
      operation_->tensors.back().offered_bytes = submission_.offered[t].bytes;
    }
    return {};
  }

  Status take_tensor(const perseus_tensor_t& tensor) {
    if (const auto bytes = bytes_of(tensor); !bytes.is_ok()) return about(bytes.status());
    if (tensor.rank == 0 && name_.kind == OperationKind::kReduceScatter) {
      return wrong("a scalar cannot be scattered; submit a tensor of at least one dimension");
    }
    if (tensor.output != nullptr && is_uneven(name_.kind)) {
      return wrong("the size of its result is not known in advance; pass a null output");
    }
    TensorDescription& description = operation_->description.tensors.emplace_back();
    description.dtype = static_cast<DataType>(tensor.dtype);
    for (int32_t d = 0; d < tensor.rank; ++d) description.shape.push_back(tensor.shape[d]);
    OperationTensor& slot = operation_->tensors.emplace_back();
    slot.input = static_cast<const std::byte*>(tensor.input);
    slot.output = static_cast<std::byte*>(tensor.output);
    return {};
  }

  // Called last, when everything else is right: it records an event on the caller's stream.
  Status take_gpu() {
    const std::string& folders = engine_.settings().cuda_library_path;
    auto found = find_gpu(*operation_, folders, submission_.device_index);
    if (!found.is_ok()) return about(found.status());
    Gpu& gpu = *found.value();
    for (size_t t = 0; t < operation_->tensors.size(); ++t) {
      const OperationTensor& tensor = operation_->tensors[t];
      const TensorDescription& description = operation_->description.tensors[t];
      if (description.elements() == 0) continue;
      const size_t element = size_of(description.dtype);
      const size_t bytes = static_cast<size_t>(description.elements()) * element;
      PERSEUS_RETURN_IF_ERROR(about(gpu.check_memory(tensor.input, bytes, element)));
      if (tensor.offered != nullptr && tensor.offered_bytes > 0) {
        PERSEUS_RETURN_IF_ERROR(
            about(gpu.check_memory(tensor.offered, tensor.offered_bytes, element)));
      }
      if (tensor.output == nullptr) continue;
      // A reduce-scatter returns only a part, whose size is not known here.
      const size_t least = name_.kind == OperationKind::kReduceScatter ? 1 : bytes;
      PERSEUS_RETURN_IF_ERROR(about(gpu.check_memory(tensor.output, least, element)));
    }
    const CurrentContext current(gpu);
    PERSEUS_RETURN_IF_ERROR(about(current.status()));
    PERSEUS_RETURN_IF_ERROR(about(place_on_gpu(*operation_, gpu, submission_.stream)));
    const auto place =
        std::lower_bound(set_ranks_.begin(), set_ranks_.end(), engine_.topology().rank);
    return about(allocate_outputs(*operation_, static_cast<int>(set_ranks_.size()),
                                  static_cast<int>(place - set_ranks_.begin())));
  }

  Status about(const Status& status) const {
    if (status.is_ok()) return status;
    return {status.code(), title(name_.key) + ": " + status.message()};
  }

  Status take_reduction() {
    if (submission_.reduce_op < PERSEUS_AVERAGE || submission_.reduce_op > PERSEUS_BITWISE_XOR) {
      return wrong("there is no reduce operation " + std::to_string(submission_.reduce_op));
    }
    if (!std::isfinite(submission_.prescale) || !std::isfinite(submission_.postscale)) {
      return wrong("prescale and postscale factors must be finite");
    }
    if (!codec_exists(submission_.codec)) {
      return wrong("there is no codec " + std::to_string(submission_.codec));
    }
    Description& description = operation_->description;
    description.reduce_op = static_cast<ReduceOp>(submission_.reduce_op);
    description.prescale = submission_.prescale;
    description.postscale = submission_.postscale;
    description.codec = submission_.codec;
    return {};
  }

  Status take_root() {
    if (!std::binary_search(set_ranks_.begin(), set_ranks_.end(), submission_.root)) {
      return wrong("root rank " + std::to_string(submission_.root) +
                   " does not belong to process set " + std::to_string(name_.process_set));
    }
    operation_->description.root = submission_.root;
    return {};
  }

  Status take_splits() {
    const TensorDescription& tensor = operation_->description.tensors.front();
    // A scalar is an error that all ranks report together.
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
    const auto size = static_cast<int64_t>(set_ranks_.size());
    std::vector<int64_t>& splits = operation_->splits;
    if (submission_.splits == nullptr) {
      if (rows % size != 0) {
        return wrong("without splits its first dimension, " + std::to_string(rows) +
                     ", must be a multiple of the " + std::to_string(size) + " ranks");
      }
      splits.assign(static_cast<size_t>(size), rows / size);
      return {};
    }
    if (submission_.split_count != size) {
      return wrong(std::to_string(submission_.split_count) + " splits were given for " +
                   std::to_string(size) + " ranks");
    }
    splits.assign(submission_.splits, submission_.splits + size);
    int64_t sum = 0;
    for (int64_t split : splits) {
      if (split < 0 || __builtin_add_overflow(sum, split, &sum)) {
        return wrong("splits must be 0 or more");
      }
    }
    if (sum > rows) {
      return wrong("the splits add up to " + std::to_string(sum) + ", but it has only " +
                   std::to_string(rows) + " rows");
    }
    return {};
  }

  const perseus_submission_t& submission_;
  const Names::Entry& name_;
  const std::vector<int>& set_ranks_;
  const Engine& engine_;
  OperationPtr operation_ = recycled_operations().take();
};

}  // namespace

// Never destroyed: threads of the host program may hold operations until the process ends.
Recycler<Operation>& recycled_operations() {
  static auto& the_one = *new Recycler<Operation>;
  return the_one;
}

Result<int64_t> bytes_of(const perseus_tensor_t& tensor, const char* memory) {
  if (tensor.dtype < 0 || tensor.dtype >= kDataTypeCount) {
    return Status::invalid_argument("data type " + std::to_string(tensor.dtype) +
                                    " is not supported");
  }
  if (tensor.rank < 0 || (tensor.rank > 0 && tensor.shape == nullptr)) {
    return Status::invalid_argument("its shape is missing, or has a negative number of dimensions");
  }
  int64_t bytes = static_cast<int64_t>(size_of(static_cast<DataType>(tensor.dtype)));
  for (int32_t d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] < 0 || __builtin_mul_overflow(bytes, tensor.shape[d], &bytes)) {
      return Status::invalid_argument("its shape is impossible");
    }
  }
  if (bytes > most_bytes()) {
    return Status::invalid_argument("its shape needs more memory than a machine can have");
  }
  if (tensor.input == nullptr && bytes > 0) {
    return Status::invalid_argument(std::string("its ") + memory + " is a null pointer");
  }
  return bytes;
}

Status check_callback_thread(perseus_callback_thread_t thread) {
  if (thread == PERSEUS_CALLBACK_IN_LIBRARY || thread == PERSEUS_CALLBACK_IN_WAIT) return {};
  return Status::invalid_argument("there is no callback_thread " + std::to_string(thread));
}

Status check_membership(const Names::Entry& name, const std::vector<int>& set_ranks, int rank) {
  if (std::binary_search(set_ranks.begin(), set_ranks.end(), rank)) return {};
  return wrong_call(name, "rank " + std::to_string(rank) + " does not belong to process set " +
                              std::to_string(name.process_set));
}

Result<OperationPtr> make_operation(const perseus_submission_t& submission,
                                    const Names::Entry& name, const std::vector<int>& set_ranks,
                                    const Engine& engine) {
  return Checker(submission, name, set_ranks, engine).run();
}

}  // namespace perseus
