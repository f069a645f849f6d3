#include "messages/message_lines.h"

#include <algorithm>

namespace perseus {
namespace {

constexpr uint64_t kEnvelopeCost = 64;
constexpr uint64_t kMostWindow = 256 << 10;

}  // namespace

MessageCredit::MessageCredit(uint64_t credit)
    : window(std::min(credit / 4, kMostWindow)), held(credit - window) {}

uint64_t MessageCredit::cost_of(uint64_t bytes) { return kEnvelopeCost + bytes; }

void MessageLines::tell(int to, const Envelope& envelope, std::span<const std::byte> elements) {
  writer_.clear();
  envelope.write(writer_);
  if (!elements.empty()) writer_.put_bytes(elements.data(), elements.size());
  mesh.send_control(to, writer_.bytes());
}

Status MessageLines::ended(int peer, int32_t set, const Status& status) {
  --moving_;
  if (status.is_ok()) return status;
  // Others can go on without a rank that has left in the middle of a message. One that has ended
  // the work of all ranks has not said that it leaves.
  if (mesh.has_left(peer) && host.has_left(peer)) return host.without(peer, set);
  return host.transfer_failed(status);
}

// The process sets of collectives are not negative.
Tag tag_of_message(uint64_t number, uint32_t run) {
  return {.operation = uint64_t{1} << 63 | number, .shard = run};
}

// That the codec fits the tensor has been checked.
MessageForm form_of(const Operation& send) {
  return MessageForm::of(send.description.tensors.front(), send.description.codec).value();
}

Envelope envelope_of(const Operation& send, uint64_t number) {
  Envelope envelope{.process_set = send.process_set,
                    .tag = send.message.tag,
                    .number = number,
                    .tensor = {.dtype = DataType::kUint8, .shape = {0}},
                    .refusal = send.refusal};
  if (!send.refusal.empty()) return envelope;
  envelope.tensor = send.description.tensors.front();
  const MessageForm form = form_of(send);
  envelope.in_runs = form.is_encoded() || send.gpu != nullptr;
  if (!form.is_encoded()) return envelope;
  envelope.codec = send.description.codec;
  envelope.encoded_bytes = form.bytes();
  return envelope;
}

Status taken(const Operation& send) {
  return send.refusal.empty() ? Status() : Status::mismatch(send.refusal);
}

}  // namespace perseus
