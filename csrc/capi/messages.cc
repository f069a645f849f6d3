// perseus.h: messages between two ranks.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/settings.h"
#include "capi/c_status.h"
#include "capi/checked_submission.h"
#include "capi/gpu_place.h"
#include "capi/process.h"
#include "capi/submit.h"
#include "codec/codec.h"
#include "messages/message_form.h"

namespace perseus {

static_assert(PERSEUS_FIRST_TAG_OF_LIBRARIES == MessageEnds::kFirstOfLibraries);

namespace {

constexpr size_t kLongestReason = 1024;
// The size before messages had codecs and devices.
constexpr size_t kFirstTransferSize = offsetof(perseus_transfer_t, codec);

// Appends how errors name the message: "to rank 1 (tag 7)". An operation's key keeps its memory, so
// that this allocates nothing.
void append_name(std::string& key, bool is_send, const perseus_transfer_t& message) {
  key += is_send ? "to " : "from ";
  if (message.peer == PERSEUS_ANY_RANK && !is_send) {
    key += "any rank";
  } else {
    key.append("rank ").append(std::to_string(message.peer));
  }
  if (message.tag == PERSEUS_ANY_TAG && !is_send) {
    key += " (any tag";
  } else {
    key.append(" (tag ").append(std::to_string(message.tag));
  }
  if (message.set != PERSEUS_WORLD) {
    key.append(", process set ").append(std::to_string(message.set));
  }
  key += ')';
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// Returns what one rank alone can see to be wrong.
Status check_ends(const Engine& engine, bool is_send, const perseus_transfer_t& message) {
  const auto ranks = engine.process_set_ranks(message.set);
  PERSEUS_RETURN_IF_ERROR(ranks.status());
  const auto is_outside = [&](int rank) {
    return Status::invalid_argument("rank " + std::to_string(rank) +
                                    " does not belong to process set " +
                                    std::to_string(message.set));
  };
  const int rank = engine.topology().rank;
  if (!contains(*ranks.value(), rank)) return is_outside(rank);
  const bool is_any_rank = !is_send && message.peer == PERSEUS_ANY_RANK;
  if (!is_any_rank && !contains(*ranks.value(), message.peer)) return is_outside(message.peer);
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
  if (is_send) slot.input = static_cast<const std::byte*>(tensor.input);
  if (!is_send) slot.output = static_cast<std::byte*>(tensor.output);
  return {};
}

// The codec is given with a send; 0 stands for none.
Status take_codec(Operation& operation, int32_t codec) {
  if (!codec_exists(codec)) {
    return Status::invalid_argument("there is no codec " + std::to_string(codec));
  }
  operation.description.codec = codec == kCodecFromSettings ? kCodecNone : codec;
  return MessageForm::of(operation.description.tensors.front(), operation.description.codec)
      .status();
}

// Called last: it records an event on the caller's stream.
Status take_gpu(Operation& operation, const Engine& engine, const perseus_transfer_t& message) {
  if (message.device != PERSEUS_CPU && message.device != PERSEUS_CUDA) {
    return Status::invalid_argument("there is no kind of device " + std::to_string(message.device));
  }
  const TensorDescription& description = operation.description.tensors.front();
  const auto elements = static_cast<size_t>(description.elements());
  if (message.device == PERSEUS_CPU || elements == 0) return {};
  const auto found = find_gpu(operation, engine.settings().cuda_library_path, message.device_index);
  if (!found.is_ok()) return found.status();
  Gpu& gpu = *found.value();
  const OperationTensor& tensor = operation.tensors.front();
  const bool is_send = operation.description.kind == OperationKind::kSend;
  const size_t size = size_of(description.dtype);
  PERSEUS_RETURN_IF_ERROR(
      gpu.check_memory(is_send ? tensor.input : tensor.output, elements * size, size));
  const CurrentContext current(gpu);
  PERSEUS_RETURN_IF_ERROR(current.status());
  return place_on_gpu(operation, gpu, message.stream);
}

// Takes the caller's tensor, and what is to be done with it.
Status take_tensor(Operation& operation, const Engine& engine, const perseus_transfer_t& message) {
  const bool is_send = operation.description.kind == OperationKind::kSend;
  PERSEUS_RETURN_IF_ERROR(take_end(operation, is_send, *message.tensor));
  if (is_send) PERSEUS_RETURN_IF_ERROR(take_codec(operation, message.codec));
  return take_gpu(operation, engine, message);
}

}  // namespace

Status transfer(const std::shared_ptr<Engine>& engine, OperationKind kind,
                const perseus_transfer_t& message, perseus_handle_t* handle) {
  if (engine == nullptr) return not_initialized();
  const bool is_send = kind == OperationKind::kSend;
  const OperationPtr operation = recycled_operations().take();
  operation->process_set = message.set;
  operation->key = operation_key(kind, "");
  append_name(operation->key, is_send, message);
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
    status = take_tensor(*operation, *engine, message);
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
  if (message == nullptr || message->struct_size < kFirstTransferSize) {
    return to_c(
        Status::invalid_argument(what + ": the message is missing, or its struct_size is not set"));
  }
  if (handle == nullptr) {
    return to_c(Status::invalid_argument(what + ": the place for its handle is missing"));
  }
  // A program that was compiled before the last fields existed gets the CPU, and no codec.
  perseus_transfer_t known{};
  std::memcpy(&known, message, std::min(message->struct_size, sizeof known));
  return to_c(transfer(Process::instance().engine(), kind, known, handle));
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
