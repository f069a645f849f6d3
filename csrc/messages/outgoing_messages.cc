#include "messages/outgoing_messages.h"

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
  const uint64_t bytes = bytes_of(*send);
  const uint64_t cost = MessageCredit::cost_of(bytes);
  const bool is_whole =
      bytes <= kMostWithEnvelope && receiver.with_envelopes + cost <= lines_.credit.window;
  const Envelope envelope = envelope_of(*send, ++receiver.sent, is_whole);
  lines_.counters.messages_sent.add();
  lines_.counters.message_bytes_sent.add(bytes);
  if (!is_whole) {
    lines_.tell(to, envelope);
    announced_[{to, envelope.number}] = {send, {}};
    return;
  }
  lines_.tell(
      to, envelope,
      bytes > 0 ? std::span(send->tensors.front().input, bytes) : std::span<const std::byte>());
  receiver.with_envelopes += cost;
  lines_.host.message_done(send, taken(*send));
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
  if (bytes_of(*send) == 0) return lines_.host.message_done(send, taken(*send));
  move(send, clearance.number).start(nullptr);
}

bool OutgoingMessages::on_credit(int from, const Credit& credit) {
  Receiver& receiver = receivers_[from];
  if (credit.bytes > receiver.with_envelopes) return false;
  receiver.with_envelopes -= credit.bytes;
  return true;
}

Task OutgoingMessages::move(OperationPtr send, uint64_t number) {
  lines_.begun();
  const int to = send->message.peer;
  Transfer transfer;
  lines_.mesh.link(to).send(transfer, tag_of_message(number), send->tensors.front().input,
                            bytes_of(*send), send->description.priority);
  const Status status = lines_.ended(to, send->process_set, co_await transfer);
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
