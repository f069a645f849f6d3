// perseus.h: names, submission, results.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "capi/c_status.h"
#include "capi/process.h"
#include "capi/run.h"
#include "capi/submit.h"
#include "capi/waiting.h"

using perseus::Operation;
using perseus::OperationKind;
using perseus::OperationPtr;
using perseus::Process;
using perseus::Status;
using perseus::to_c;

namespace {

constexpr size_t kMaxName = 4096;
// The sizes in the first published perseus.h, which had no devices.
constexpr size_t kFirstSubmissionSize = offsetof(perseus_submission_t, device);
constexpr size_t kFirstResultSize = offsetof(perseus_result_t, device);

// Returns the complete operation behind a handle, or an error.
perseus::Result<OperationPtr> find_complete(perseus_handle_t handle) {
  OperationPtr operation = Process::instance().handles.find(handle);
  if (operation == nullptr) return perseus::unknown_handle(handle);
  if (!operation->done.is_set()) {
    return Status::invalid_argument("the operation is still under way; wait for it first");
  }
  if (!operation->status.is_ok()) return operation->status;
  return operation;
}

// A program that was compiled before the last fields existed gets the CPU.
perseus::Result<perseus_submission_t> whole(const perseus_submission_t* submission) {
  if (submission == nullptr || submission->struct_size < kFirstSubmissionSize) {
    return Status::invalid_argument("the submission is missing, or its struct_size is not set");
  }
  perseus_submission_t known{};
  std::memcpy(&known, submission, std::min(submission->struct_size, sizeof known));
  return known;
}

}  // namespace

extern "C" {

perseus_status_t perseus_register(perseus_process_set_t set, perseus_operation_t operation,
                                  const char* name, int32_t* id) {
  if (operation < PERSEUS_ALLREDUCE || operation > PERSEUS_JOIN) {
    return to_c(Status::invalid_argument("there is no operation " + std::to_string(operation)));
  }
  const std::string_view text = name == nullptr ? std::string_view() : name;
  if (id == nullptr) {
    return to_c(
        Status::invalid_argument("the place for the id of '" + std::string(text) + "' is missing"));
  }
  if (text.empty() || text.size() > kMaxName) {
    return to_c(
        Status::invalid_argument("a name must hold 1 to " + std::to_string(kMaxName) + " bytes"));
  }
  Process& process = Process::instance();
  process.counters.registrations.add();
  *id = process.names.id_of(set, static_cast<OperationKind>(operation), text);
  return PERSEUS_OK;
}

perseus_status_t perseus_submit(const perseus_submission_t* submission, perseus_handle_t* handle) {
  const auto known = whole(submission);
  if (!known.is_ok()) return to_c(known.status());
  return to_c(perseus::submit(Process::instance().engine(), known.value(), handle));
}

perseus_status_t perseus_run(const perseus_submission_t* submission, int64_t time_out_ms,
                             perseus_handle_t* handle) {
  const auto known = whole(submission);
  if (!known.is_ok()) return to_c(known.status());
  perseus_handle_t unwanted = 0;
  perseus_handle_t& place = handle == nullptr ? unwanted : *handle;
  if (handle == nullptr && perseus::is_bound(time_out_ms)) {
    return to_c(Status::invalid_argument(
        "the place for the handle is missing; with a time-out the operation may still be under "
        "way when perseus_run returns"));
  }
  return to_c(perseus::run(Process::instance().engine(), known.value(), time_out_ms, place));
}

perseus_status_t perseus_refuse(int32_t id, const char* reason) {
  return to_c(perseus::refuse(Process::instance().engine(), id,
                              reason == nullptr ? "it gave no reason" : reason));
}

const char* perseus_title(int32_t id) {
  static thread_local std::string title;
  const auto name = Process::instance().names.find(id);
  title = name.is_ok() ? perseus::title(name.value()->key) : "";
  return title.c_str();
}

int32_t perseus_poll(perseus_handle_t handle) {
  const OperationPtr operation = Process::instance().handles.find(handle);
  return operation == nullptr ? -1 : static_cast<int32_t>(operation->done.is_set());
}

perseus_status_t perseus_wait(perseus_handle_t handle, int64_t time_out_ms) {
  const OperationPtr operation = Process::instance().handles.find(handle);
  if (operation == nullptr) return to_c(perseus::unknown_handle(handle));
  return to_c(perseus::wait_for(*operation, time_out_ms));
}

perseus_status_t perseus_wait_on_stream(perseus_handle_t handle, void* stream,
                                        int64_t time_out_ms) {
  const OperationPtr operation = Process::instance().handles.find(handle);
  if (operation == nullptr) return to_c(perseus::unknown_handle(handle));
  return to_c(perseus::wait_on_stream(*operation, stream, time_out_ms));
}

perseus_status_t perseus_result(perseus_handle_t handle, int32_t index, perseus_result_t* result) {
  const auto found = find_complete(handle);
  if (!found.is_ok()) return to_c(found.status());
  const Operation& operation = *found.value();
  if (result == nullptr || result->struct_size < kFirstResultSize) {
    return to_c(Status::invalid_argument("the result's struct_size is not set"));
  }
  const bool is_join = operation.description.kind == OperationKind::kJoin;
  const bool has_tensor = index >= 0 && static_cast<size_t>(index) < operation.tensors.size();
  if (!is_join && !has_tensor) {
    return to_c(Status::invalid_argument("the operation has no result " + std::to_string(index)));
  }
  perseus_result_t described{};
  described.struct_size = result->struct_size;
  described.last_rank = operation.last_rank;
  described.sequence = operation.sequence;
  described.device = static_cast<perseus_device_t>(operation.description.device);
  described.device_index = operation.gpu != nullptr ? operation.gpu->ordinal() : -1;
  const bool is_receive = operation.description.kind == OperationKind::kReceive;
  described.source = is_receive ? operation.message.peer : -1;
  described.tag = is_receive ? operation.message.tag : -1;
  if (!is_join) {
    const perseus::OperationTensor& tensor = operation.tensors[index];
    described.data = tensor.output;
    described.shape = tensor.result_shape.data();
    described.rank = static_cast<int32_t>(tensor.result_shape.size());
    described.dtype = static_cast<perseus_dtype_t>(
        is_receive ? operation.message.dtype : operation.description.tensors[index].dtype);
    if (!operation.received_splits.empty()) {
      described.received_splits = operation.received_splits.data();
      described.received_split_count = static_cast<int32_t>(operation.received_splits.size());
    }
  }
  std::memcpy(result, &described, std::min(described.struct_size, sizeof described));
  return PERSEUS_OK;
}

void* perseus_take_result(perseus_handle_t handle, int32_t index) {
  const auto found = find_complete(handle);
  if (!found.is_ok() || index < 0 || static_cast<size_t>(index) >= found.value()->tensors.size()) {
    return nullptr;
  }
  return found.value()->tensors[index].allocated.release();
}

void perseus_free(void* data) { perseus::FreeMemory()(static_cast<std::byte*>(data)); }

void perseus_free_on_stream(void* data, void* stream) {
  if (!perseus::Gpu::free_on_stream(data, static_cast<perseus::CuStream>(stream))) {
    perseus_free(data);
  }
}

void perseus_release(perseus_handle_t handle) { Process::instance().handles.remove(handle); }

}  // extern "C"
