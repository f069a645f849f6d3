#include "engine_operation.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "backlog.h"

namespace perseus::mxnet {
namespace {

struct TypeInfo {
  uint8_t code;
  uint8_t bits;
  perseus_dtype_t dtype;
};

// MXNet's types. Its bool claims to have one bit, but takes a byte.
constexpr TypeInfo kTypes[] = {
    {dlpack::kFloat, 32, PERSEUS_FLOAT32}, {dlpack::kFloat, 64, PERSEUS_FLOAT64},
    {dlpack::kFloat, 16, PERSEUS_FLOAT16}, {dlpack::kUint, 8, PERSEUS_UINT8},
    {dlpack::kInt, 8, PERSEUS_INT8},       {dlpack::kInt, 32, PERSEUS_INT32},
    {dlpack::kInt, 64, PERSEUS_INT64},     {dlpack::kUint, 1, PERSEUS_BOOL},
};

std::optional<perseus_dtype_t> dtype_of(dlpack::DataType type) {
  for (const TypeInfo& info : kTypes) {
    if (info.code == type.code && info.bits == type.bits) return info.dtype;
  }
  return std::nullopt;
}

std::string last_mxnet_error() { return api().MXGetLastError(); }

// Returns the text that MXNet's users see; its first word chooses the class.
std::string shown(perseus_status_t status, const std::string& message) {
  switch (status) {
    case PERSEUS_INVALID_ARGUMENT:
    case PERSEUS_DUPLICATE_NAME: return "PerseusValueError: " + message;
    case PERSEUS_NON_FINITE: return "NonFiniteError: " + message;
    case PERSEUS_NOT_INITIALIZED: return "NotInitializedError: " + message;
    case PERSEUS_ABORTED: return "AbortedError: " + message;
    case PERSEUS_MISMATCH: return "MismatchError: " + message;
    default: return "HorovodInternalError: " + message;
  }
}

// Keeps only one of several arrays that MXNet's engine sees as one: given more, the operation would
// wait for itself.
void keep_one_a_chunk(std::vector<NDArrayHandle>& arrays) {
  std::sort(arrays.begin(), arrays.end(),
            [](NDArrayHandle a, NDArrayHandle b) { return chunk_of(a) < chunk_of(b); });
  arrays.erase(
      std::unique(arrays.begin(), arrays.end(),
                  [](NDArrayHandle a, NDArrayHandle b) { return chunk_of(a) == chunk_of(b); }),
      arrays.end());
}

bool holds_chunk_of(const std::vector<NDArrayHandle>& arrays, NDArrayHandle array) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [&](NDArrayHandle each) { return chunk_of(each) == chunk_of(array); });
}

bool overlap(const std::vector<const dlpack::Tensor*>& tensors) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const dlpack::Tensor* tensor : tensors) {
    size_t bytes = (tensor->dtype.bits + 7) / 8;
    for (int i = 0; i < tensor->rank; ++i) bytes *= tensor->shape[i];
    const auto* const begin = static_cast<const char*>(tensor->data);
    if (bytes > 0) ranges.emplace_back(begin, begin + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return true;
  }
  return false;
}

const char* name_of(perseus_operation_t operation) {
  switch (operation) {
    case PERSEUS_ALLREDUCE: return "PerseusAllreduce";
    case PERSEUS_BROADCAST: return "PerseusBroadcast";
    case PERSEUS_ALLGATHER: return "PerseusAllgather";
    case PERSEUS_ALLTOALL: return "PerseusAlltoall";
    default: return "PerseusReducescatter";
  }
}

std::string titled(int32_t id, const std::string& what) {
  return std::string(perseus_title(id)) + ": " + what;
}

void refuse(const Turns::Ticket& ticket, int32_t id, const std::string& reason) {
  turns().begin(ticket, [ticket, id, reason] {
    perseus_refuse(id, reason.c_str());
    turns().end(ticket);
  });
}

}  // namespace

// Never destroyed: MXNet's threads may outlive static objects.
Backlog& backlog() {
  static Backlog& the_one = *new Backlog;
  return the_one;
}

void refuse(int32_t id, const std::string& reason) { refuse(turns().take(id), id, reason); }

EngineOperation::EngineOperation(const perseus_mxnet_call_t& what, std::shared_ptr<Outcome> outcome)
    : what_(what),
      splits_(what.splits, what.splits + what.split_count),
      outcome_(std::move(outcome)),
      ticket_(turns().take(what.id)) {
  what_.inputs = what_.outputs = nullptr;
  what_.splits = nullptr;
  backlog().add();
}

// If the call has not run, the other ranks are told so that they do not wait for it.
EngineOperation::~EngineOperation() {
  if (has_run_) return;
  if (why_not_.empty()) why_not_ = "an MXNet operation that it depends on has failed";
  refuse(ticket_, what_.id, why_not_);
  if (outcome_ != nullptr) outcome_->fail(PERSEUS_ABORTED, titled(what_.id, why_not_));
  outcome_.reset();
  backlog().remove();
}

std::string EngineOperation::push(const perseus_mxnet_call_t& what,
                                  std::shared_ptr<Outcome> outcome) {
  // If two calls of one name write to one array, MXNet must get them in the order of their turns.
  // (The naive engine returns when a call is done, which may need a call of another thread.)
  static std::mutex& one_at_a_time = *new std::mutex;
  std::unique_lock lock(one_at_a_time, std::defer_lock);
  if (what.is_naive == 0) lock.lock();
  std::unique_ptr<EngineOperation> operation(new EngineOperation(what, std::move(outcome)));
  std::vector<NDArrayHandle> written;
  if (what.outputs != nullptr) written.assign(what.outputs, what.outputs + what.array_count);
  keep_one_a_chunk(written);
  std::vector<NDArrayHandle> read;
  for (int i = 0; i < what.array_count; ++i) {
    if (!holds_chunk_of(written, what.inputs[i])) read.push_back(what.inputs[i]);
  }
  if (!operation->take_references(what)) return operation->why_not_ = last_mxnet_error();
  const auto run = [](void*, void* on_complete, void* self) {
    // The operation may end, and be freed, on another thread before this one returns.
    const InBacklog returning(backlog());
    static_cast<EngineOperation*>(self)->run(*static_cast<const OnComplete*>(on_complete));
  };
  const auto free = [](void* self) { delete static_cast<EngineOperation*>(self); };
  static const Context cpu;
  // From here on the operation belongs to MXNet, which frees it even if it refuses it.
  if (api().MXEnginePushAsyncND(run, operation.release(), free, &cpu, read.data(),
                                static_cast<int>(read.size()), written.data(),
                                static_cast<int>(written.size()), &kOnPrioritizedThread,
                                what.priority, name_of(what.operation), false) != 0) {
    return last_mxnet_error();
  }
  return "";
}

bool EngineOperation::take_references(const perseus_mxnet_call_t& what) {
  const auto take = [&](const NDArrayHandle* arrays, std::vector<Array>& references) {
    for (int i = 0; arrays != nullptr && i < what.array_count; ++i) {
      NDArrayHandle copy = nullptr;
      if (api().MXShallowCopyNDArray(arrays[i], &copy) != 0) return false;
      references.emplace_back(copy);
    }
    return true;
  };
  return take(what.inputs, inputs_) && take(what.outputs, outputs_);
}

void EngineOperation::run(OnComplete on_complete) {
  has_run_ = true;
  on_complete_ = on_complete;
  turns().begin(ticket_, [this] { begin(); });
}

void EngineOperation::begin() {
  if (describe_tensors()) {
    submit();
  } else {
    perseus_refuse(what_.id, why_not_.c_str());
    complete(0, PERSEUS_INVALID_ARGUMENT, titled(what_.id, why_not_).c_str());
  }
}

bool EngineOperation::describe_tensors() {
  std::vector<const dlpack::Tensor*> written;
  for (const Array& output : outputs_) {
    const dlpack::Tensor* const tensor = view(output, true);
    if (tensor == nullptr) return false;
    written.push_back(tensor);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const dlpack::Tensor* const input = view(inputs_[i], false);
    if (input == nullptr) return false;
    const std::optional<perseus_dtype_t> dtype = dtype_of(input->dtype);
    if (!dtype) {
      why_not_ = "arrays of this type cannot be sent";
      return false;
    }
    types_.push_back(input->dtype);
    void* const output = written.empty() ? nullptr : written[i]->data;
    tensors_.push_back({input->data, output, input->shape, input->rank, *dtype});
  }
  if (!overlap(written)) return true;
  why_not_ = "two arrays of the group share memory, which can hold only one result";
  return false;
}

// If an array is in a layout of oneDNN's, MXNDArrayToDLPack fails; MXNDArrayGetData would wait, for
// this very call.
const dlpack::Tensor* EngineOperation::view(const Array& array, bool is_written) {
  dlpack::ManagedTensor* managed = nullptr;
  if (api().MXNDArrayToDLPack(array.get(), &managed) == 0) {
    return &views_.emplace_back(managed)->tensor;
  }
  why_not_ = last_mxnet_error();
  try {
    NDArrayHandle plain = array.get();
    if (is_written && api().to_default_layout != nullptr) {
      api().to_default_layout(chunk_of(array.get()));
    } else if (!is_written && api().make_default_copy != nullptr) {
      void* const memory = ::operator new(kNDArrayBytes);
      api().make_default_copy(memory, array.get());
      plain = copies_.emplace_back(memory).get();
    }
    if (api().MXNDArrayToDLPack(plain, &managed) != 0) return nullptr;
  } catch (const std::exception& error) {
    why_not_ = error.what();
    return nullptr;
  }
  return &views_.emplace_back(managed)->tensor;
}

void EngineOperation::submit() {
  perseus_submission_t submission{};
  submission.struct_size = sizeof(submission);
  submission.id = what_.id;
  submission.tensor_count = static_cast<int32_t>(tensors_.size());
  submission.tensors = tensors_.data();
  submission.reduce_op = what_.reduce_op;
  submission.root = what_.root;
  submission.prescale = what_.prescale;
  submission.postscale = what_.postscale;
  submission.splits = splits_.empty() ? nullptr : splits_.data();
  submission.split_count = static_cast<int32_t>(splits_.size());
  submission.priority = what_.priority;
  const dlpack::Device device = views_.front()->tensor.device;
  submission.device = device.type == dlpack::kCuda ? PERSEUS_CUDA : PERSEUS_CPU;
  submission.device_index = device.type == dlpack::kCuda ? device.id : -1;
  // MXNet's engine starts an operation only when the GPU has completed those before it.
  submission.stream = PERSEUS_NO_STREAM;
  submission.callback = [](void* user, perseus_handle_t handle, perseus_status_t status,
                           const char* message) {
    static_cast<EngineOperation*>(user)->complete(handle, status, message);
  };
  submission.user = this;
  perseus_handle_t handle = 0;
  const perseus_status_t status = perseus_submit(&submission, &handle);
  if (status != PERSEUS_OK) complete(0, status, perseus_last_error());
}

void EngineOperation::complete(perseus_handle_t handle, perseus_status_t status,
                               const char* message) {
  if (outcome_ != nullptr && status == PERSEUS_OK) {
    outcome_->succeed(handle, outputs_.empty() ? types_ : std::vector<dlpack::DataType>());
  } else if (outcome_ != nullptr) {
    outcome_->fail(status, message);
  }
  if (handle != 0) perseus_release(handle);
  views_.clear();
  copies_.clear();
  turns().end(ticket_);
  const bool is_asked = outcome_ != nullptr;
  outcome_.reset();
  // Nothing that needs libperseus comes after this.
  backlog().remove();
  const OnComplete on_complete = on_complete_;
  // An error that MXNet's engine gets stays with the arrays and reaches whoever waits for a result.
  if (status == PERSEUS_OK || is_asked) {
    on_complete(nullptr);  // frees this object
    return;
  }
  const Error error(shown(status, message));
  on_complete(&error);
}

}  // namespace perseus::mxnet
