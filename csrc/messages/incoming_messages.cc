#include "messages/incoming_messages.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/large_memory.h"

namespace perseus {
namespace {

MessageKey key_of(const Operation& operation) {
  return {operation.process_set, operation.message.peer, operation.message.tag};
}

Status could_not(int rank, const std::string& refusal) {
  return Status::mismatch("rank " + std::to_string(rank) + " could not take part: " + refusal);
}

bool is_on_gpu(const Operation& operation) { return operation.gpu != nullptr; }

// The form of the message's elements; the error says why this rank cannot read it.
Result<MessageForm> form_of(const Envelope& envelope) {
  auto form = MessageForm::of(envelope.tensor, envelope.codec);
  if (!form.is_ok()) return Status::mismatch(form.status().message());
  if (form.value().bytes() == envelope.bytes()) return form;
  return Status::mismatch("its codec gives " + std::to_string(envelope.bytes()) +
                          " bytes on the sender and " + std::to_string(form.value().bytes()) +
                          " on the receiver; register the same codecs on all ranks");
}

}  // namespace

IncomingMessages::IncomingMessages(MessageLines& lines, const DepartedSenders& departed)
    : lines_(lines),
      departed_(departed),
      senders_(static_cast<size_t>(lines.mesh.topology().size)) {}

// ---- What this rank's program submits.

void IncomingMessages::submit(const OperationPtr& receive) {
  const MessageKey asked = key_of(*receive);
  if (const KeptMessagePtr message = mailbox_.take_message(asked)) {
    return deliver_kept(message, receive);
  }
  if (is_hopeless(*receive)) {
    return lines_.host.message_done(
        receive, lines_.host.without(receive->message.peer, receive->process_set));
  }
  mailbox_.post(asked, receive);
}

void IncomingMessages::submit_own(const OperationPtr& send) {
  Sender& self = senders_[lines_.rank];
  auto message = std::make_shared<KeptMessage>();
  message->envelope = envelope_of(*send, self.received + 1);
  // It travels nowhere.
  message->envelope.is_whole = true;
  message->envelope.in_runs = false;
  message->envelope.codec = kCodecNone;
  message->source = lines_.rank;
  message->own_send = send;
  self.last_tag = send->message.tag;
  ++self.received;
  const uint64_t bytes = message->envelope.bytes();
  lines_.counters.messages_sent.add();
  lines_.counters.message_bytes_sent.add(bytes);
  const MessageKey key{send->process_set, lines_.rank, send->message.tag};
  if (const OperationPtr receive = mailbox_.take_receive(key)) {
    return deliver_kept(message, receive);
  }
  lines_.counters.messages_kept.add();
  mailbox_.keep(message);
  if (self.held + MessageCredit::cost_of(bytes) > lines_.credit.held) return;
  message->data = lines_.buffers.take(bytes);
  if (!message->data) return;  // it is in the send until it is asked for
  self.held += MessageCredit::cost_of(bytes);
  message->own_send = nullptr;
  if (is_on_gpu(*send)) {
    message->elements = KeptMessage::Elements::kArriving;
    return move_own_ahead(send, message, form_of(message->envelope).value()).start(nullptr);
  }
  message->elements = KeptMessage::Elements::kHere;
  if (bytes > 0) std::memcpy(message->data.data(), send->tensors.front().input, bytes);
  lines_.host.message_done(send, taken(*send));
}

// ---- What other ranks say.

void IncomingMessages::on_envelope(int from, ByteReader& reader) {
  Sender& sender = senders_[from];
  const auto envelope = Envelope::read(reader);
  if (!envelope || envelope->number != sender.received + 1 ||
      reader.remaining() != (envelope->is_whole ? envelope->bytes() : 0)) {
    return lines_.host.on_malformed_message(from);
  }
  const uint64_t bytes = envelope->bytes();
  if (envelope->is_whole) sender.untaken += MessageCredit::cost_of(bytes);
  if (sender.untaken + sender.to_return > lines_.credit.window)
    return lines_.host.on_malformed_message(from);
  sender.received = envelope->number;
  sender.last_tag = envelope->tag;
  if (has_ended_) return;
  if (lines_.host.has_closed(envelope->process_set)) {
    if (envelope->is_whole) return give_back(from, MessageCredit::cost_of(bytes));
    const Status why = lines_.host.without(lines_.rank, envelope->process_set);
    return clear(from, {.number = envelope->number, .refusal = why});
  }
  const MessageKey key{envelope->process_set, from, envelope->tag};
  if (const OperationPtr receive = mailbox_.take_receive(key)) {
    if (!envelope->is_whole) return fetch(receive, *envelope, from);
    deliver(receive, *envelope, from, reader.rest().data(), {});
    return give_back(from, MessageCredit::cost_of(bytes));
  }
  auto message = std::make_shared<KeptMessage>();
  message->envelope = *envelope;
  message->source = from;
  if (envelope->is_whole) {
    message->elements = KeptMessage::Elements::kHere;
    message->data = lines_.buffers.take(bytes);
    if (!message->data) {
      return lines_.host.on_no_memory(bytes);
    }
    if (bytes > 0) std::memcpy(message->data.data(), reader.rest().data(), bytes);
  } else if (MessageCredit::cost_of(bytes) <= lines_.credit.held && form_of(*envelope).is_ok()) {
    sender.announced.push_back(message);
  }
  lines_.counters.messages_kept.add();
  mailbox_.keep(std::move(message));
  clear_ahead(from);
}

void IncomingMessages::on_withdrawal(int from, const Withdrawal& withdrawal) {
  mailbox_.drop_messages([&](KeptMessage& message) {
    if (message.source != from || message.envelope.number != withdrawal.number ||
        message.elements != KeptMessage::Elements::kAtSender) {
      return false;
    }
    forget(message, Status::aborted("it was withdrawn"));
    return true;
  });
}

// ---- From a message to its receive.

void IncomingMessages::deliver_kept(const KeptMessagePtr& message, const OperationPtr& receive) {
  const int source = message->source;
  const Envelope& envelope = message->envelope;
  if (message->own_send != nullptr) {
    return deliver_own(std::exchange(message->own_send, nullptr), receive, envelope);
  }
  switch (message->elements) {
    case KeptMessage::Elements::kAtSender:
      std::erase(senders_[source].announced, message);
      return fetch(receive, envelope, source);
    case KeptMessage::Elements::kArriving: message->receive = receive; return;
    case KeptMessage::Elements::kHere: break;
  }
  const std::byte* wire = message->data.data();
  deliver(receive, envelope, source, wire, std::move(message->data));
  if (envelope.is_whole && source != lines_.rank) {
    give_back(source, MessageCredit::cost_of(envelope.bytes()));
  } else {
    senders_[source].held -= MessageCredit::cost_of(envelope.bytes());
    clear_ahead(source);
  }
}

void IncomingMessages::deliver_own(const OperationPtr& send, const OperationPtr& receive,
                                   const Envelope& envelope) {
  const auto form = accept(*receive, envelope, lines_.rank);
  if (form.is_ok() && (is_on_gpu(*send) || is_on_gpu(*receive))) {
    return move_own(send, receive, form.value()).start(nullptr);
  }
  if (form.is_ok() && envelope.bytes() > 0) {
    form.value().decode_all(send->tensors.front().input, receive->tensors.front().output);
  }
  lines_.host.message_done(send, form.status());
  lines_.host.message_done(receive, form.status());
}

void IncomingMessages::deliver(const OperationPtr& receive, const Envelope& envelope, int source,
                               const std::byte* wire, Buffer kept) {
  const auto form = accept(*receive, envelope, source);
  if (!form.is_ok() || envelope.bytes() == 0) {
    return lines_.host.message_done(receive, form.status());
  }
  if (!is_on_gpu(*receive)) {
    form.value().decode_all(wire, receive->tensors.front().output);
    return lines_.host.message_done(receive, {});
  }
  if (!kept) {
    kept = lines_.buffers.take(envelope.bytes());
    if (!kept) return lines_.host.on_no_memory(envelope.bytes());
    std::memcpy(kept.data(), wire, envelope.bytes());
  }
  move_up(receive, form.value(), std::move(kept)).start(nullptr);
}

void IncomingMessages::fetch(const OperationPtr& receive, const Envelope& envelope, int source) {
  const auto form = accept(*receive, envelope, source);
  if (!form.is_ok() || envelope.bytes() == 0) {
    clear(source, {envelope.number, envelope.in_runs, form.status()});
    return lines_.host.message_done(receive, form.status());
  }
  const bool in_runs = envelope.in_runs || is_on_gpu(*receive);
  move_in(receive, {source, envelope.number, in_runs, form.value()}).start(nullptr);
}

Result<MessageForm> IncomingMessages::accept(Operation& receive, const Envelope& envelope,
                                             int source) const {
  const TensorDescription& sent = envelope.tensor;
  receive.message = {source, envelope.tag, sent.dtype};
  if (!receive.refusal.empty()) return could_not(lines_.rank, receive.refusal);
  if (!envelope.refusal.empty()) return could_not(source, envelope.refusal);
  auto form = form_of(envelope);
  if (form.is_ok()) PERSEUS_RETURN_IF_ERROR(make_room(receive, envelope, source));
  return form;
}

Status IncomingMessages::make_room(Operation& receive, const Envelope& envelope, int source) const {
  const TensorDescription& sent = envelope.tensor;
  if (receive.description.tensors.empty()) {
    OperationTensor& result = receive.tensors.emplace_back();
    result.result_shape = sent.shape;
    const auto bytes = static_cast<uint64_t>(sent.elements()) * size_of(sent.dtype);
    if (bytes == 0) return {};
    result.allocated.reset(allocate_large(bytes));
    result.output = result.allocated.get();
    if (result.output != nullptr) return {};
    return Status::out_of_memory("there is no memory for " + to_string(sent) + ", which " +
                                 lines_.mesh.topology().name(source) + " has sent");
  }
  const TensorDescription& asked = receive.description.tensors.front();
  receive.tensors.front().result_shape = asked.shape;
  if (asked.dtype == sent.dtype && asked.elements() == sent.elements()) return {};
  return Status::mismatch("rank " + std::to_string(source) + " sent " + to_string(sent) +
                          " with tag " + std::to_string(envelope.tag) + ", and rank " +
                          std::to_string(lines_.rank) + " asked for " + to_string(asked) +
                          "; both must have the same data type and number of elements");
}

// ---- Moving elements.

Task IncomingMessages::move_in(OperationPtr receive, AnnouncedElements announced) {
  lines_.begun();
  const Status moved = co_await receive_elements(lines_, *receive, announced);
  const Status status = lines_.ended(announced.source, receive->process_set, moved);
  lines_.host.message_done(receive, status);
  lines_.host.transfer_ended();
  co_return status;
}

Task IncomingMessages::move_ahead(KeptMessagePtr message, AnnouncedElements announced) {
  lines_.begun();
  const Status moved = co_await receive_ahead(lines_, announced, message->data.data());
  const Status status = lines_.ended(message->source, message->envelope.process_set, moved);
  arrived(message, status);
  lines_.host.transfer_ended();
  co_return status;
}

Task IncomingMessages::move_up(OperationPtr receive, MessageForm form, Buffer wire) {
  lines_.begun();
  const Status moved = co_await copy_to_tensor(lines_, *receive, form, wire.data());
  const Status status = lines_.ended(lines_.rank, receive->process_set, moved);
  lines_.host.message_done(receive, status);
  lines_.host.transfer_ended();
  co_return status;
}

Task IncomingMessages::move_own(OperationPtr send, OperationPtr receive, MessageForm form) {
  lines_.begun();
  const Status moved = co_await copy_between(lines_, *send, *receive, form);
  const Status status = lines_.ended(lines_.rank, send->process_set, moved);
  lines_.host.message_done(send, status);
  lines_.host.message_done(receive, status);
  lines_.host.transfer_ended();
  co_return status;
}

Task IncomingMessages::move_own_ahead(OperationPtr send, KeptMessagePtr message, MessageForm form) {
  lines_.begun();
  const Status moved = co_await copy_from_tensor(lines_, *send, form, message->data.data());
  const Status status = lines_.ended(lines_.rank, send->process_set, moved);
  lines_.host.message_done(send, status);
  arrived(message, status);
  lines_.host.transfer_ended();
  co_return status;
}

void IncomingMessages::arrived(const KeptMessagePtr& message, const Status& status) {
  message->elements = KeptMessage::Elements::kHere;
  const OperationPtr receive = std::exchange(message->receive, nullptr);
  if (status.is_ok() && receive != nullptr) return deliver_kept(message, receive);
  if (status.is_ok() && !message->is_dropped) return;
  senders_[message->source].held -= MessageCredit::cost_of(message->envelope.bytes());
  mailbox_.drop_messages([&](const KeptMessage& kept) { return &kept == message.get(); });
  if (receive != nullptr) lines_.host.message_done(receive, status);
  clear_ahead(message->source);
}

// ---- Room for what nobody has asked for.

void IncomingMessages::clear_ahead(int rank) {
  Sender& sender = senders_[rank];
  while (!sender.announced.empty()) {
    const KeptMessagePtr message = sender.announced.front();
    const uint64_t bytes = message->envelope.bytes();
    if (sender.held + MessageCredit::cost_of(bytes) > lines_.credit.held) return;
    message->data = lines_.buffers.take(bytes);
    if (!message->data) return;  // it stays where it is until it is asked for
    sender.announced.pop_front();
    sender.held += MessageCredit::cost_of(bytes);
    if (bytes == 0) {
      message->elements = KeptMessage::Elements::kHere;
      clear(rank, {.number = message->envelope.number, .in_runs = message->envelope.in_runs});
      continue;
    }
    message->elements = KeptMessage::Elements::kArriving;
    const Envelope& envelope = message->envelope;
    move_ahead(message, {rank, envelope.number, envelope.in_runs, form_of(envelope).value()})
        .start(nullptr);
  }
}

void IncomingMessages::give_back(int rank, uint64_t bytes) {
  Sender& sender = senders_[rank];
  sender.untaken -= bytes;
  sender.to_return += bytes;
  if (sender.to_return < lines_.credit.window / 2) return;
  lines_.tell(rank, Credit{std::exchange(sender.to_return, 0)});
}

void IncomingMessages::forget(KeptMessage& message, const Status& why) {
  const int source = message.source;
  const uint64_t cost = MessageCredit::cost_of(message.envelope.bytes());
  if (message.own_send != nullptr) {
    return lines_.host.message_done(std::exchange(message.own_send, nullptr), why);
  }
  switch (message.elements) {
    case KeptMessage::Elements::kAtSender:
      std::erase_if(senders_[source].announced,
                    [&](const KeptMessagePtr& announced) { return announced.get() == &message; });
      return clear(source, {.number = message.envelope.number, .refusal = why});
    case KeptMessage::Elements::kArriving: message.is_dropped = true; return;
    case KeptMessage::Elements::kHere: break;
  }
  if (message.envelope.is_whole && source != lines_.rank) {
    give_back(source, cost);
  } else {
    senders_[source].held -= cost;
  }
}

// ---- Ends.

void IncomingMessages::fail_hopeless() {
  const auto is_one = [this](const Operation& receive) { return is_hopeless(receive); };
  for (const OperationPtr& receive : mailbox_.take_receives(is_one)) {
    lines_.host.message_done(receive,
                             lines_.host.without(receive->message.peer, receive->process_set));
  }
}

bool IncomingMessages::is_hopeless(const Operation& receive) const {
  const int32_t set = receive.process_set;
  if (receive.message.peer != MessageEnds::kAny)
    return departed_.has_gone(receive.message.peer, set);
  if (departed_.is_empty()) return false;
  const std::span<const int> ranks = lines_.host.ranks_of(set);
  return ranks.size() > 1 && std::ranges::all_of(ranks, [&](int rank) {
           return rank == lines_.rank || departed_.has_gone(rank, set);
         });
}

void IncomingMessages::end_set(int32_t set, const Status& why) {
  const auto is_of_set = [set](const Operation& receive) { return receive.process_set == set; };
  for (const OperationPtr& receive : mailbox_.take_receives(is_of_set)) {
    lines_.host.message_done(receive, why);
  }
  mailbox_.drop_messages([&](KeptMessage& message) {
    if (message.envelope.process_set != set) return false;
    forget(message, why);
    return true;
  });
}

void IncomingMessages::end_all(const Status& why) {
  has_ended_ = true;
  const auto is_any = [](const Operation&) { return true; };
  for (const OperationPtr& receive : mailbox_.take_receives(is_any)) {
    lines_.host.message_done(receive, why);
  }
  mailbox_.drop_messages([&](KeptMessage& message) {
    if (message.own_send != nullptr) lines_.host.message_done(message.own_send, why);
    return true;
  });
}

// ---- For the watches.

void IncomingMessages::for_each_waiting(const std::function<void(const Operation&)>& visit) const {
  mailbox_.for_each_receive(visit);
}

std::string IncomingMessages::last_from(int rank) const {
  const Sender& sender = senders_[rank];
  if (sender.received == 0) return "which has sent nothing";
  return "which last sent tag " + std::to_string(sender.last_tag);
}

}  // namespace perseus
