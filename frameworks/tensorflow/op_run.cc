#include "op_run.h"

#include <optional>
#include <utility>

namespace perseus::tensorflow {
namespace {

std::optional<perseus_dtype_t> dtype_of(int type) {
  switch (type) {
    case kUint8: return PERSEUS_UINT8;
    case kInt8: return PERSEUS_INT8;
    case kUint16: return PERSEUS_UINT16;
    case kInt16: return PERSEUS_INT16;
    case kInt32: return PERSEUS_INT32;
    case kInt64: return PERSEUS_INT64;
    case kHalf: return PERSEUS_FLOAT16;
    case kBfloat16: return PERSEUS_BFLOAT16;
    case kFloat: return PERSEUS_FLOAT32;
    case kDouble: return PERSEUS_FLOAT64;
    case kBool: return PERSEUS_BOOL;
    default: return std::nullopt;
  }
}

std::vector<int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<int64_t> shape(api().TF_NumDims(tensor));
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = api().TF_Dim(tensor, static_cast<int>(i));
  }
  return shape;
}

size_t element_bytes(perseus_dtype_t dtype) {
  switch (dtype) {
    case PERSEUS_UINT16:
    case PERSEUS_INT16:
    case PERSEUS_FLOAT16:
    case PERSEUS_BFLOAT16: return 2;
    case PERSEUS_INT32:
    case PERSEUS_FLOAT32: return 4;
    case PERSEUS_INT64:
    case PERSEUS_FLOAT64: return 8;
    default: return 1;
  }
}

}  // namespace

void OpRun::start(const Collective& collective, TF_OpKernelContext* context,
                  std::function<void()> done) {
  auto* const run = new OpRun(collective, context, std::move(done));
  if (run->take_inputs() && run->take_splits() && run->make_outputs()) {
    run->submit();
    return;
  }
  for (const Member& member : collective.members) {
    perseus_refuse(member.id, run->why_not_.c_str());
  }
  run->end();
}

bool OpRun::take_inputs() {
  const StatusHolder status = new_status();
  const int count = api().TF_NumInputs(context_);
  for (int i = 0; i < count; ++i) {
    TF_Tensor* tensor = nullptr;
    api().TF_GetInput(context_, i, &tensor, status.get());
    if (!is_ok(status)) return fail(status);
    inputs_.emplace_back(tensor);
    shapes_.push_back(shape_of(tensor));
  }
  return true;
}

bool OpRun::take_splits() {
  if (collective_.operation != PERSEUS_ALLTOALL) return true;
  const TF_Tensor* const tensor = inputs_.back().get();
  if (shapes_.back().size() != 1) {
    return fail(kInvalidArgument, "alltoall: splits has " + std::to_string(shapes_.back().size()) +
                                      " dimensions; it takes 1");
  }
  const auto* const values = static_cast<const int32_t*>(api().TF_TensorData(tensor));
  splits_.assign(values, values + shapes_.back()[0]);
  return true;
}

bool OpRun::make_outputs() {
  if (!has_own_outputs()) return true;
  const StatusHolder status = new_status();
  for (int i = 0; i < tensor_count(); ++i) {
    // TensorFlow forwards an input only if nobody holds it.
    inputs_[i].reset();
    outputs_.emplace_back(api().TF_ForwardInputOrAllocateOutput(
        context_, &i, 1, i, shapes_[i].data(), static_cast<int>(shapes_[i].size()), nullptr,
        status.get()));
    if (!is_ok(status)) return fail(status);
    TF_Tensor* tensor = nullptr;
    api().TF_GetInput(context_, i, &tensor, status.get());
    if (!is_ok(status)) return fail(status);
    inputs_[i].reset(tensor);
  }
  return true;
}

void OpRun::submit() {
  std::vector<perseus_tensor_t> tensors(tensor_count());
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].input = api().TF_TensorData(inputs_[i].get());
    tensors[i].output = has_own_outputs() ? api().TF_TensorData(outputs_[i].get()) : nullptr;
    tensors[i].shape = shapes_[i].data();
    tensors[i].rank = static_cast<int32_t>(shapes_[i].size());
    // The ops accept no types but these.
    tensors[i].dtype = *dtype_of(api().TF_TensorType(inputs_[i].get()));
  }
  // Once the last member is submitted, all may be complete and this object gone.
  const std::span<const Member> members = collective_.members;
  incomplete_ = members.size();
  const size_t of_each = tensors.size() / members.size();
  for (size_t i = 0; i < members.size(); ++i) {
    submit(members[i], std::span(tensors).subspan(i * of_each, of_each));
  }
}

void OpRun::submit(const Member& member, std::span<const perseus_tensor_t> tensors) {
  perseus_submission_t submission{};
  submission.struct_size = sizeof(submission);
  submission.id = member.id;
  submission.tensor_count = static_cast<int32_t>(tensors.size());
  submission.tensors = tensors.data();
  submission.reduce_op = collective_.reduce_op;
  submission.root = collective_.root;
  submission.prescale = collective_.prescale;
  submission.postscale = collective_.postscale;
  submission.splits = splits_.empty() ? nullptr : splits_.data();
  submission.split_count = static_cast<int32_t>(splits_.size());
  submission.priority = member.priority;
  submission.callback = [](void* user, perseus_handle_t handle, perseus_status_t status,
                           const char* message) {
    static_cast<OpRun*>(user)->complete(handle, status, message);
  };
  submission.user = this;
  perseus_handle_t handle = 0;
  const perseus_status_t status = perseus_submit(&submission, &handle);
  if (status != PERSEUS_OK) complete(0, status, perseus_last_error());
}

void OpRun::complete(perseus_handle_t handle, perseus_status_t status, const char* message) {
  if (status == PERSEUS_OK) {
    give_results(handle);
  } else if (const int code = code_of(status); code == kUnknown) {
    // Elastic training recognises the error by this word.
    fail(code, std::string("HorovodInternalError: ") + message);
  } else {
    fail(code, message);
  }
  if (handle != 0) perseus_release(handle);
  if (incomplete_.fetch_sub(1) == 1) end();
}

void OpRun::end() {
  const std::unique_ptr<OpRun> self(this);
  if (why_not_code_ != kOk) {
    const StatusHolder status = new_status();
    api().TF_SetStatus(status.get(), why_not_code_, why_not_.c_str());
    api().TF_OpKernelContext_Failure(context_, status.get());
  }
  inputs_.clear();
  outputs_.clear();
  done_();
}

bool OpRun::give_results(perseus_handle_t handle) {
  if (has_own_outputs()) return true;
  perseus_result_t result{};
  result.struct_size = sizeof(result);
  if (collective_.operation == PERSEUS_JOIN) {
    perseus_result(handle, 0, &result);
    const int64_t last = result.last_rank;
    return give_numbers(0, &last, 1, true);
  }
  for (int i = 0; i < tensor_count(); ++i) {
    if (perseus_result(handle, i, &result) != PERSEUS_OK) {
      return fail(kInternal, perseus_last_error());
    }
    if (!give_result(i, result, perseus_take_result(handle, i))) return false;
  }
  if (collective_.operation != PERSEUS_ALLTOALL) return true;
  return give_numbers(1, result.received_splits, result.received_split_count, false);
}

// Passes the library's memory on to TensorFlow.
bool OpRun::give_result(int index, const perseus_result_t& result, void* data) {
  const StatusHolder status = new_status();
  const int type = api().TF_TensorType(inputs_[index].get());
  size_t bytes = element_bytes(result.dtype);
  for (int i = 0; i < result.rank; ++i) bytes *= result.shape[i];
  Tensor tensor;
  if (data == nullptr) {
    tensor.reset(api().TF_AllocateOutput(context_, index, type, result.shape, result.rank, bytes,
                                         status.get()));
    return is_ok(status) || fail(status);
  }
  const auto free = [](void* memory, size_t, void*) { perseus_free(memory); };
  tensor.reset(api().TF_NewTensor(type, result.shape, result.rank, data, bytes, free, nullptr));
  if (tensor == nullptr) return fail(kInternal, "TensorFlow refuses the result");
  api().TF_SetOutput(context_, index, tensor.get(), status.get());
  return is_ok(status) || fail(status);
}

bool OpRun::give_numbers(int output, const int64_t* numbers, int64_t count, bool is_scalar) {
  const StatusHolder status = new_status();
  const Tensor tensor(api().TF_AllocateOutput(context_, output, kInt32, &count, is_scalar ? 0 : 1,
                                              count * sizeof(int32_t), status.get()));
  if (!is_ok(status)) return fail(status);
  auto* const values = static_cast<int32_t*>(api().TF_TensorData(tensor.get()));
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(numbers[i]);
  return true;
}

bool OpRun::fail(int code, const std::string& message) {
  const std::lock_guard lock(why_not_mutex_);
  if (why_not_code_ != kOk) return false;
  why_not_code_ = code;
  why_not_ = message;
  return false;
}

bool OpRun::fail(const StatusHolder& status) {
  return fail(api().TF_GetCode(status.get()), api().TF_Message(status.get()));
}

}  // namespace perseus::tensorflow
