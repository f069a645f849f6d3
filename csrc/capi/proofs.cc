// perseus.h: proofs that a message comes from a rank of this world.
#include <cstring>
#include <string>
#include <string_view>

#include "base/part_digests.h"
#include "base/world_key.h"
#include "capi/c_status.h"
#include "capi/process.h"
#include "perseus/perseus.h"

using perseus::Engine;
using perseus::MessageTag;
using perseus::Process;
using perseus::Status;
using perseus::to_c;

static_assert(PERSEUS_PROOF_BYTES == sizeof(MessageTag));

namespace {

// From here on it is faster to digest a message by parts.
constexpr size_t kLargeBytes = 4 * perseus::kDigestedPartBytes;

Status check(const Engine* engine, const perseus_message_t* message, const void* proof) {
  if (message == nullptr || message->struct_size < sizeof *message) {
    return Status::invalid_argument("the message is missing, or its struct_size is not set");
  }
  if (engine == nullptr) return perseus::not_initialized();
  const bool has_data = message->data != nullptr || message->bytes == 0;
  if (message->what == nullptr || !has_data || proof == nullptr) {
    return Status::invalid_argument(
        "a null pointer stands where a message's title, its data or its proof must be");
  }
  if (message->sender < 0 || message->sender >= engine->topology().size) {
    return Status::invalid_argument("the sender is rank " + std::to_string(message->sender) +
                                    "; it must be from 0 to " +
                                    std::to_string(engine->topology().size - 1));
  }
  return {};
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

MessageTag tag_of(const Engine& engine, const perseus_message_t& message) {
  std::string_view data(static_cast<const char*>(message.data), message.bytes);
  const uint64_t bytes = data.size();
  std::string digests;
  if (bytes >= kLargeBytes) {
    digests = perseus::digests_of_parts(data, engine.topology().processor_share);
    data = digests;
  }
  return engine.world_key().tag(
      "message", {bytes_of(message.process_set), bytes_of(message.sender), message.what,
                  bytes_of(message.sequence), bytes_of(bytes), data});
}

}  // namespace

extern "C" {

perseus_status_t perseus_prove(const perseus_message_t* message, void* proof) {
  const auto engine = Process::instance().engine();
  if (const Status status = check(engine.get(), message, proof); !status.is_ok()) {
    return to_c(status);
  }
  if (message->sender != engine->topology().rank) {
    return to_c(Status::invalid_argument("the sender is rank " + std::to_string(message->sender) +
                                         "; it must be this rank, " +
                                         std::to_string(engine->topology().rank)));
  }
  const MessageTag tag = tag_of(*engine, *message);
  std::memcpy(proof, tag.data(), tag.size());
  return PERSEUS_OK;
}

perseus_status_t perseus_check_proof(const perseus_message_t* message, const void* proof) {
  const auto engine = Process::instance().engine();
  if (const Status status = check(engine.get(), message, proof); !status.is_ok()) {
    return to_c(status);
  }
  const std::string_view given(static_cast<const char*>(proof), sizeof(MessageTag));
  if (perseus::equal_in_constant_time(perseus::view(tag_of(*engine, *message)), given)) {
    return PERSEUS_OK;
  }
  return to_c(engine->break_world(std::string(message->what) + ": what has come from " +
                                  engine->topology().name(message->sender) +
                                  std::string(perseus::kForged)));
}

}  // extern "C"
