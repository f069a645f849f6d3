#include "messages/outgoing_messages.h"

#include <array>
#include <cstddef>
#include <utility>

#include "messages/message_moves.h"

namespace perseus {
namespace {

// The largest message that travels with its envelope, where an extra copy costs less than a
// clearance.
constexpr uint64_t kMostWithEnvelope = 8 << 10;

}  // namespace

OutgoingMessages::OutgoingMessages(MessageLines& lines, const DepartedSenders& departed)
    : lines_(lines),
      departed_(departed),
      receivers_(static_cast<size_t>(lines.mesh.topology().size)) {}

void OutgoingMessages::submit(const OperationPtr& send) {
  const int to = send->message.peer;
  if (lines_.host.has_left(to) || departed_.has_gone(to, send->process_set)) {
    return lines_.host.message_done(send, lines_.host.without(to, send->process_set));
  }
  Receiver& receiver = receivers_[to];
  Envelope envelope = envelope_of(*send, ++receiver.sent);
  const uint64_t bytes = envelope.bytes();
  const uint64_t cost = MessageCredit::cost_of(bytes);
  envelope.is_whole = bytes <= kMostWithEnvelope && send->gpu == nullptr &&
                      receiver.with_envelopes + cost <= lines_.credit.window;
  lines_.counters.messages_sent.add();
  lines_.counters.message_bytes_sent.add(bytes);
  if (!envelope.is_whole) {
    lines_.tell(to, envelope);
    announced_[{to, envelope.number}] = {send, {}};
    return;
  }
  send_whole(*send, envelope);
  receiver.with_envelopes += cost;
  lines_.host.message_done(send, taken(*send));
}

void OutgoingMessages::send_whole(const Operation& send, const Envelope& envelope) {
  const int to = send.message.peer;
  const uint64_t bytes = envelope.bytes();
  if (bytes == 0) return lines_.tell(to, envelope, {});
  const std::byte* elements = send.tensors.front().input;
  if (envelope.codec == kCodecNone) return lines_.tell(to, envelope, {elements, bytes});
  std::array<std::byte, kMostWithEnvelope> encoded;
  form_of(send).encode_all(elements, encoded.data());
  lines_.tell(to, envelope, {encoded.data(), bytes});
}

void OutgoingMessages::on_clearance(int from, const Clearance& clearance) {
  auto found = announced_.extract({from, clearance.number});
  if (!found) {
    if (!has_ended_ && !lines_.host.has_left(from)) lines_.host.on_malformed_message(from);
    return;
  }
  const OperationPtr send = std::move(found.mapped().send);
  if (!clearance.refusal.is_ok()) {
    const Status& withdrawn = found.mapped().withdrawn;
    return lines_.host.message_done(send, withdrawn.is_ok() ? clearance.refusal : withdrawn);
  }
  if (send->description.bytes() == 0) return lines_.host.message_done(send, taken(*send));
  // Elements that are here as they are to travel can go either way.
  if (!clearance.in_runs && (send->gpu != nullptr || form_of(*send).is_encoded())) {
    lines_.host.message_done(send, Status::aborted("its receiver asked for it in a wrong way"));
    return lines_.host.on_malformed_message(from);
  }
  move(send, clearance.number, clearance.in_runs).start(nullptr);
}

bool OutgoingMessages::on_credit(int from, const Credit& credit) {
  Receiver& receiver = receivers_[from];
  if (credit.bytes > receiver.with_envelopes) return false;
  receiver.with_envelopes -= credit.bytes;
  return true;
}

Task OutgoingMessages::move(OperationPtr send, uint64_t number, bool in_runs) {
  lines_.begun();
  const Status moved = co_await send_elements(lines_, *send, number, in_runs);
  const Status status = lines_.ended(send->message.peer, send->process_set, moved);
  lines_.host.message_done(send, status);
  lines_.host.transfer_ended();
  co_return status;
}

void OutgoingMessages::on_leaving(int rank) {
  for (auto place = announced_.begin(); place != announced_.end();) {
    if (place->first.first != rank) {
      ++place;
      continue;
    }
    const OperationPtr send = place->second.send;
    place = announced_.erase(place);
    lines_.host.message_done(send, lines_.host.without(rank, send->process_set));
  }
}

void OutgoingMessages::end_set(int32_t set, const Status& why) {
  for (auto& [place, announced] : announced_) {
    if (announced.send->process_set != set || !announced.withdrawn.is_ok()) continue;
    announced.withdrawn = why;
    lines_.tell(place.first, Withdrawal{place.second});
  }
}

void OutgoingMessages::end_all(const Status& why) {
  has_ended_ = true;
  for (auto& [place, announced] : std::exchange(announced_, {})) {
    lines_.host.message_done(announced.send, why);
  }
}

void OutgoingMessages::for_each_waiting(const std::function<void(const Operation&)>& visit) const {
  for (const auto& [place, announced] : announced_) visit(*announced.send);
}

}  // namespace perseus
