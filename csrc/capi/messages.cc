// perseus.h: messages between two ranks.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "capi/c_status.h"
#include "capi/checked_submission.h"
#include "capi/process.h"
#include "capi/submit.h"

namespace perseus {
namespace {

constexpr size_t kLongestReason = 1024;

// Names the message in errors: "to rank 1 (tag 7)".
std::string name_of(bool is_send, const perseus_transfer_t& message) {
  std::string name = is_send ? "to " : "from ";
  name += message.peer == PERSEUS_ANY_RANK && !is_send ? "any rank"
                                                       : "rank " + std::to_string(message.peer);
  name += message.tag == PERSEUS_ANY_TAG && !is_send ? " (any tag"
                                                     : " (tag " + std::to_string(message.tag);
  if (message.set != PERSEUS_WORLD) name += ", process set " + std::to_string(message.set);
  return name + ')';
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// Returns what one rank alone can see to be wrong.
Status check_ends(const Engine& engine, bool is_send, const perseus_transfer_t& message) {
  const auto ranks = engine.process_set_ranks(message.set);
  PERSEUS_RETURN_IF_ERROR(ranks.status());
  const std::string set = " does not belong to process set " + std::to_string(message.set);
  const int rank = engine.topology().rank;
  if (!contains(*ranks.value(), rank)) {
    return Status::invalid_argument("rank " + std::to_string(rank) + set);
  }
  const bool is_any_rank = !is_send && message.peer == PERSEUS_ANY_RANK;
  if (!is_any_rank && !contains(*ranks.value(), message.peer)) {
    return Status::invalid_argument("rank " + std::to_string(message.peer) + set);
  }
  const bool is_any_tag = !is_send && message.tag == PERSEUS_ANY_TAG;
  if (message.tag < 0 && !is_any_tag) {
    return Status::invalid_argument("the tag is " + std::to_string(message.tag) +
                                    "; it must be 0 or more");
  }
  return check_callback_thread(message.callback_thread);
}

Status take_end(Operation& operation, bool is_send, const perseus_tensor_t& tensor) {
  perseus_tensor_t checked = tensor;
  if (!is_send) checked.input = tensor.output;
  PERSEUS_RETURN_IF_ERROR(bytes_of(checked, is_send ? "input" : "output").status());
  TensorDescription& description = operation.description.tensors.emplace_back();
  description.dtype = static_cast<DataType>(tensor.dtype);
  for (int32_t d = 0; d < tensor.rank; ++d) description.shape.push_back(tensor.shape[d]);
  OperationTensor& slot = operation.tensors.emplace_back();
  slot.input = static_cast<const std::byte*>(tensor.input);
  slot.output = static_cast<std::byte*>(tensor.output);
  return {};
}

}  // namespace

Status transfer(const std::shared_ptr<Engine>& engine, OperationKind kind,
                const perseus_transfer_t& message, perseus_handle_t* handle) {
  if (engine == nullptr) return not_initialized();
  const bool is_send = kind == OperationKind::kSend;
  const OperationPtr operation = recycled_operations().take();
  operation->process_set = message.set;
  operation->key = operation_key(kind, name_of(is_send, message));
  operation->description.kind = kind;
  operation->description.priority = message.priority;
  operation->message = {message.peer, message.tag};
  const auto about_it = [&](const Status& status) -> Status {
    return {status.code(), title(operation->key) + ": " + status.message()};
  };
  Status status = check_ends(*engine, is_send, message);
  if (!status.is_ok()) return about_it(status);
  if (message.refusal != nullptr) {
    operation->refusal = std::string(message.refusal).substr(0, kLongestReason);
  } else if (message.tensor != nullptr) {
    status = take_end(*operation, is_send, *message.tensor);
  } else if (is_send) {
    status = Status::invalid_argument("its tensor is missing");
  }
  if (!status.is_ok()) {
    // The other rank is told, so that it does not wait for this one.
    operation->refusal = status.message();
    operation->description.tensors.clear();
    operation->tensors.clear();
    [[maybe_unused]] const Status told = engine->submit(operation);
    return about_it(status);
  }

  Process& process = Process::instance();
  const perseus_handle_t added = process.handles.add(operation);
  if (message.callback != nullptr) {
    operation->callback = calling(message.callback, message.user);
    operation->is_bound = message.callback_thread == PERSEUS_CALLBACK_IN_LIBRARY;
  }
  status = engine->submit(operation);
  if (status.is_ok()) {
    *handle = added;
  } else {
    process.handles.remove(added);
  }
  return status;
}

namespace {

perseus_status_t begin_transfer(OperationKind kind, const perseus_transfer_t* message,
                                perseus_handle_t* handle) {
  const std::string what(to_string(kind));
  if (message == nullptr || message->struct_size < sizeof *message) {
    return to_c(
        Status::invalid_argument(what + ": the message is missing, or its struct_size is not set"));
  }
  if (handle == nullptr) {
    return to_c(Status::invalid_argument(what + ": the place for its handle is missing"));
  }
  return to_c(transfer(Process::instance().engine(), kind, *message, handle));
}

}  // namespace
}  // namespace perseus

extern "C" {

perseus_status_t perseus_send(const perseus_transfer_t* message, perseus_handle_t* handle) {
  return perseus::begin_transfer(perseus::OperationKind::kSend, message, handle);
}

perseus_status_t perseus_recv(const perseus_transfer_t* message, perseus_handle_t* handle) {
  return perseus::begin_transfer(perseus::OperationKind::kReceive, message, handle);
}

}  // extern "C"
