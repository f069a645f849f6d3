#include "capi/run.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "capi/checked_submission.h"
#include "capi/process.h"
#include "capi/submit.h"
#include "capi/waiting.h"
#include "codec/codec.h"
#include "engine/engine_scope.h"
#include "engine/quick_calls.h"

namespace perseus {
namespace {

// The results go to memory of the caller's, since no handle is left to fetch them with.
Status check_outputs(const perseus_submission_t& submission, OperationKind kind) {
  const auto use_submit = [](const std::string& what) {
    return Status::invalid_argument(what +
                                    "; perseus_run needs memory for the result: use "
                                    "perseus_submit, and fetch it with perseus_result");
  };
  if (is_uneven(kind)) return use_submit("the size of its result is not known in advance");
  if (kind == OperationKind::kJoin) return use_submit("its result is the last rank to join");
  if (kind == OperationKind::kBarrier || submission.tensors == nullptr) return {};
  for (int32_t t = 0; t < submission.tensor_count; ++t) {
    const perseus_tensor_t& tensor = submission.tensors[t];
    const auto bytes = bytes_of(tensor);
    if (tensor.output == nullptr && (!bytes.is_ok() || bytes.value() > 0)) {
      return use_submit("its output is a null pointer");
    }
  }
  return {};
}

bool is_quick_reduction(const perseus_submission_t& submission) {
  if (submission.reduce_op < PERSEUS_AVERAGE || submission.reduce_op > PERSEUS_BITWISE_XOR) {
    return false;
  }
  const auto op = static_cast<ReduceOp>(submission.reduce_op);
  return op != ReduceOp::kAdasum && submission.codec == kCodecFromSettings &&
         submission.prescale == 1.0 && submission.postscale == 1.0 &&
         !(is_bitwise(op) && is_floating(static_cast<DataType>(submission.tensors->dtype)));
}

// Adds the tensor. Returns false if it is not one for a roll call, or wrong.
bool take_tensor(QuickCall& call, const perseus_tensor_t& tensor) {
  if (tensor.rank > static_cast<int32_t>(call.form.shape.size())) return false;
  const auto bytes = bytes_of(tensor);
  if (!bytes.is_ok() || bytes.value() < 1 || bytes.value() > int64_t{kMostBrought}) return false;
  call.form.bytes = static_cast<uint32_t>(bytes.value());
  call.form.dtype = static_cast<uint8_t>(tensor.dtype);
  call.form.dimensions = static_cast<uint8_t>(tensor.rank);
  // No dimension of so few bytes is larger than what fits there.
  static_assert(kMostBrought <= std::numeric_limits<uint16_t>::max());
  std::copy_n(tensor.shape, tensor.rank, call.form.shape.begin());
  call.elements = call.form.bytes / size_of(static_cast<DataType>(tensor.dtype));
  call.input = static_cast<const std::byte*>(tensor.input);
  call.output = static_cast<std::byte*>(tensor.output);
  return call.output != nullptr;
}

// Nothing if no roll call is held for such operations.
std::optional<QuickCall> as_quick_call(const perseus_submission_t& submission,
                                       const Names::Entry& name, const Engine& engine) {
  if (name.process_set != ProcessSet::kWorld || submission.callback != nullptr) return {};
  QuickCall call;
  call.name = &name;
  call.form.name = name.hash;
  call.form.kind = static_cast<uint8_t>(name.kind);
  call.form.use = Process::instance().names.uses(submission.id);
  if (name.kind == OperationKind::kBarrier) return call;
  if (submission.device != PERSEUS_CPU || submission.tensor_count != 1 ||
      submission.tensors == nullptr || submission.offered != nullptr) {
    return {};
  }
  if (name.kind == OperationKind::kAllreduce) {
    if (!take_tensor(call, *submission.tensors) || !is_quick_reduction(submission)) return {};
    call.form.reduce_op = static_cast<uint8_t>(submission.reduce_op);
    return call;
  }
  if (name.kind != OperationKind::kBroadcast || submission.root < 0 ||
      submission.root >= engine.topology().size || !take_tensor(call, *submission.tensors)) {
    return {};
  }
  call.form.root = submission.root;
  return call;
}

// Holds a roll call if it can; nothing if the operation is still to be submitted, under the name
// that it holds.
std::optional<Status> run_quickly(Engine& engine, const perseus_submission_t& submission,
                                  const Names::Entry& name) {
  const auto call = as_quick_call(submission, name, engine);
  auto done = call ? engine.run(*call) : std::nullopt;
  if (done) Process::instance().names.give_back(submission.id);
  return done;
}

}  // namespace

Status run(const std::shared_ptr<Engine>& engine, const perseus_submission_t& submission,
           int64_t time_out_ms, perseus_handle_t& handle) {
  handle = 0;
  PERSEUS_RETURN_IF_ERROR(check_may_wait(time_out_ms));
  Process& process = Process::instance();
  const auto name = process.names.find(submission.id);
  NameUse use = NameUse::kTake;
  if (engine != nullptr && name.is_ok()) {
    if (const Status wrong = check_outputs(submission, name.value()->kind); !wrong.is_ok()) {
      PERSEUS_RETURN_IF_ERROR(refuse(engine, submission.id, wrong.message()));
      return {wrong.code(), title(name.value()->key) + ": " + wrong.message()};
    }
    if (!EngineScope::is_here() && process.names.take(submission.id)) {
      use = NameUse::kTaken;
      if (auto done = run_quickly(*engine, submission, *name.value())) return *std::move(done);
    }
  }
  PERSEUS_RETURN_IF_ERROR(submit(engine, submission, &handle, use));
  const OperationPtr operation = process.handles.find(handle);
  Status status = wait_for(*operation, time_out_ms);
  if (status.code() == StatusCode::kInProgress) return status;
  process.handles.remove(handle);
  handle = 0;
  return status;
}

}  // namespace perseus
