#include "messages/messenger.h"

#include <algorithm>
#include <cstring>

#include "base/large_memory.h"

namespace perseus {
namespace {

// The largest message that travels with its envelope, where an extra copy costs less than a
// clearance.
constexpr uint64_t kMostWithEnvelope = 8 << 10;
// An envelope counts as so many bytes, besides its elements.
constexpr uint64_t kEnvelopeCost = 64;
// The most bytes that come with envelopes and have not been taken, of one peer.
constexpr uint64_t kMostWindow = 256 << 10;

// Differs from the tags of collectives, whose process sets are not negative.
Tag tag_of(uint64_t number) { return {.operation = uint64_t{1} << 63 | number}; }

uint64_t cost_of(uint64_t bytes) { return kEnvelopeCost + bytes; }

MessageKey key_of(const Operation& operation) {
  return {operation.process_set, operation.message.peer, operation.message.tag};
}

uint64_t bytes_of(const Operation& send) { return static_cast<uint64_t>(send.description.bytes()); }

// A send that its program cannot make has a reason in place of a tensor.
Envelope envelope_of(const Operation& send, uint64_t number, bool is_whole) {
  Envelope envelope{.process_set = send.process_set,
                    .tag = send.message.tag,
                    .number = number,
                    .is_whole = is_whole,
                    .tensor = {.dtype = DataType::kUint8, .shape = {0}},
                    .refusal = send.refusal};
  if (send.refusal.empty()) envelope.tensor = send.description.tensors.front();
  return envelope;
}

// Returns what a send ends with that its receiver has taken.
Status taken(const Operation& send) {
  return send.refusal.empty() ? Status() : Status::mismatch(send.refusal);
}

Status could_not(int rank, const std::string& refusal) {
  return Status::mismatch("rank " + std::to_string(rank) + " could not take part: " + refusal);
}

void copy_elements(const OperationPtr& receive, const std::byte* elements, uint64_t bytes) {
  if (bytes > 0) std::memcpy(receive->tensors.front().output, elements, bytes);
}

}  // namespace

Messenger::Messenger(EventLoop& loop, Mesh& mesh, BufferPool& buffers, Counters& counters,
                     uint64_t credit, MessengerHost& host)
    : loop_(loop),
      mesh_(mesh),
      buffers_(buffers),
      counters_(counters),
      host_(host),
      rank_(mesh.topology().rank),
      window_(std::min(credit / 4, kMostWindow)),
      most_held_(credit - window_),
      peers_(static_cast<size_t>(mesh.topology().size)),
      departed_(loop, mesh, [this] { fail_hopeless(); }) {}

template <typename Message>
void Messenger::tell(int rank, const Message& message) {
  writer_.clear();
  message.write(writer_);
  mesh_.send_control(rank, writer_.bytes());
}

// ---- What this rank's program submits.

void Messenger::submit(const OperationPtr& operation) {
  if (operation->description.kind == OperationKind::kSend) {
    submit_send(operation);
  } else {
    submit_receive(operation);
  }
}

void Messenger::submit_send(const OperationPtr& send) {
  const int to = send->message.peer;
  if (to == rank_) return send_to_self(send);
  if (host_.has_left(to) || departed_.has_gone(to, send->process_set)) {
    return host_.message_done(send, host_.without(to, send->process_set));
  }
  Peer& peer = peers_[to];
  const uint64_t bytes = bytes_of(*send);
  const bool is_whole =
      bytes <= kMostWithEnvelope && peer.with_envelopes + cost_of(bytes) <= window_;
  const Envelope envelope = envelope_of(*send, ++peer.sent, is_whole);
  counters_.messages_sent.add();
  counters_.message_bytes_sent.add(bytes);
  writer_.clear();
  envelope.write(writer_);
  if (is_whole && bytes > 0) writer_.put_bytes(send->tensors.front().input, bytes);
  mesh_.send_control(to, writer_.bytes());
  if (is_whole) {
    peer.with_envelopes += cost_of(bytes);
    host_.message_done(send, taken(*send));
  } else {
    sends_[{to, envelope.number}] = {send, {}};
  }
}

void Messenger::send_to_self(const OperationPtr& send) {
  Peer& self = peers_[rank_];
  auto message = std::make_shared<KeptMessage>();
  message->envelope = envelope_of(*send, ++self.sent, true);
  message->source = rank_;
  message->own_send = send;
  self.last_tag = send->message.tag;
  self.received = self.sent;
  const uint64_t bytes = bytes_of(*send);
  counters_.messages_sent.add();
  counters_.message_bytes_sent.add(bytes);
  const MessageKey key{send->process_set, rank_, send->message.tag};
  if (const OperationPtr receive = mailbox_.take_receive(key)) {
    return deliver_kept(message, receive);
  }
  if (self.held + cost_of(bytes) <= most_held_ && (message->data = buffers_.take(bytes))) {
    if (bytes > 0) std::memcpy(message->data.data(), send->tensors.front().input, bytes);
    message->own_send = nullptr;
    message->elements = KeptMessage::Elements::kHere;
    self.held += cost_of(bytes);
    host_.message_done(send, taken(*send));
  }
  counters_.messages_kept.add();
  mailbox_.keep(std::move(message));
}

void Messenger::submit_receive(const OperationPtr& receive) {
  const MessageKey asked = key_of(*receive);
  if (const KeptMessagePtr message = mailbox_.take_message(asked)) {
    return deliver_kept(message, receive);
  }
  if (is_hopeless(*receive)) {
    return host_.message_done(receive, host_.without(receive->message.peer, receive->process_set));
  }
  mailbox_.post(asked, receive);
}

// ---- What other ranks say.

void Messenger::on_control(int from, ControlKind kind, ByteReader reader) {
  switch (kind) {
    case ControlKind::kEnvelope: return on_envelope(from, reader);
    case ControlKind::kClearance:
      if (const auto clearance = Clearance::read(reader)) return on_clearance(from, *clearance);
      break;
    case ControlKind::kWithdrawal:
      if (const auto withdrawal = Withdrawal::read(reader)) return on_withdrawal(from, *withdrawal);
      break;
    case ControlKind::kCredit:
      if (const auto credit = Credit::read(reader);
          credit && credit->bytes <= peers_[from].with_envelopes) {
        peers_[from].with_envelopes -= credit->bytes;
        return;
      }
      break;
    default: break;
  }
  host_.on_malformed_message(from);
}

void Messenger::on_envelope(int from, ByteReader& reader) {
  Peer& peer = peers_[from];
  const auto envelope = Envelope::read(reader);
  if (!envelope || envelope->number != peer.received + 1 ||
      reader.remaining() != (envelope->is_whole ? envelope->bytes() : 0)) {
    return host_.on_malformed_message(from);
  }
  const uint64_t bytes = envelope->bytes();
  if (envelope->is_whole) peer.untaken += cost_of(bytes);
  if (peer.untaken + peer.to_return > window_) return host_.on_malformed_message(from);
  peer.received = envelope->number;
  peer.last_tag = envelope->tag;
  if (has_ended_) return;
  if (host_.has_closed(envelope->process_set)) {
    if (envelope->is_whole) return give_back(from, cost_of(bytes));
    return clear(from, envelope->number, host_.without(rank_, envelope->process_set));
  }
  const MessageKey key{envelope->process_set, from, envelope->tag};
  if (const OperationPtr receive = mailbox_.take_receive(key)) {
    if (!envelope->is_whole) return fetch(receive, *envelope, from);
    deliver(receive, *envelope, from, reader.rest().data());
    return give_back(from, cost_of(bytes));
  }
  auto message = std::make_shared<KeptMessage>();
  message->envelope = *envelope;
  message->source = from;
  if (envelope->is_whole) {
    message->elements = KeptMessage::Elements::kHere;
    message->data = buffers_.take(bytes);
    if (!message->data) {
      return host_.on_no_memory(bytes);
    }
    if (bytes > 0) std::memcpy(message->data.data(), reader.rest().data(), bytes);
  } else if (cost_of(bytes) <= most_held_) {
    peer.announced.push_back(message);
  }
  counters_.messages_kept.add();
  mailbox_.keep(std::move(message));
  clear_ahead(from);
}

void Messenger::on_clearance(int from, const Clearance& clearance) {
  auto found = sends_.extract({from, clearance.number});
  if (!found) {
    if (!has_ended_ && !host_.has_left(from)) host_.on_malformed_message(from);
    return;
  }
  const OperationPtr send = std::move(found.mapped().send);
  if (!clearance.refusal.is_ok()) {
    const Status& withdrawn = found.mapped().withdrawn;
    return host_.message_done(send, withdrawn.is_ok() ? clearance.refusal : withdrawn);
  }
  if (bytes_of(*send) == 0) return host_.message_done(send, taken(*send));
  move_out(send, clearance.number).start(nullptr);
}

void Messenger::on_withdrawal(int from, const Withdrawal& withdrawal) {
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

void Messenger::deliver_kept(const KeptMessagePtr& message, const OperationPtr& receive) {
  const int source = message->source;
  const Envelope& envelope = message->envelope;
  if (message->own_send != nullptr) {
    const OperationPtr send = std::exchange(message->own_send, nullptr);
    const Status fits = accept(*receive, envelope, source);
    if (fits.is_ok()) copy_elements(receive, send->tensors.front().input, envelope.bytes());
    host_.message_done(send, fits);
    return host_.message_done(receive, fits);
  }
  switch (message->elements) {
    case KeptMessage::Elements::kAtSender:
      std::erase(peers_[source].announced, message);
      return fetch(receive, envelope, source);
    case KeptMessage::Elements::kArriving: message->receive = receive; return;
    case KeptMessage::Elements::kHere: break;
  }
  deliver(receive, envelope, source, message->data.data());
  if (envelope.is_whole && source != rank_) {
    give_back(source, cost_of(envelope.bytes()));
  } else {
    peers_[source].held -= cost_of(envelope.bytes());
    clear_ahead(source);
  }
}

void Messenger::deliver(const OperationPtr& receive, const Envelope& envelope, int source,
                        const std::byte* elements) {
  const Status fits = accept(*receive, envelope, source);
  if (fits.is_ok()) copy_elements(receive, elements, envelope.bytes());
  host_.message_done(receive, fits);
}

void Messenger::fetch(const OperationPtr& receive, const Envelope& envelope, int source) {
  const Status fits = accept(*receive, envelope, source);
  if (!fits.is_ok()) {
    clear(source, envelope.number, fits);
    return host_.message_done(receive, fits);
  }
  if (envelope.bytes() == 0) {
    clear(source, envelope.number);
    return host_.message_done(receive, {});
  }
  move_in(receive, source, envelope.number).start(nullptr);
}

Status Messenger::accept(Operation& receive, const Envelope& envelope, int source) const {
  const TensorDescription& sent = envelope.tensor;
  receive.message = {source, envelope.tag, sent.dtype};
  if (!receive.refusal.empty()) return could_not(rank_, receive.refusal);
  if (!envelope.refusal.empty()) return could_not(source, envelope.refusal);
  if (receive.description.tensors.empty()) {
    OperationTensor& result = receive.tensors.emplace_back();
    result.result_shape = sent.shape;
    if (envelope.bytes() == 0) return {};
    result.allocated.reset(allocate_large(envelope.bytes()));
    result.output = result.allocated.get();
    if (result.output != nullptr) return {};
    return Status::out_of_memory("there is no memory for " + to_string(sent) + ", which " +
                                 mesh_.topology().name(source) + " has sent");
  }
  const TensorDescription& asked = receive.description.tensors.front();
  receive.tensors.front().result_shape = asked.shape;
  if (asked.dtype == sent.dtype && asked.elements() == sent.elements()) return {};
  return Status::mismatch("rank " + std::to_string(source) + " sent " + to_string(sent) +
                          " with tag " + std::to_string(envelope.tag) + ", and rank " +
                          std::to_string(rank_) + " asked for " + to_string(asked) +
                          "; both must have the same data type and number of elements");
}

// ---- Moving elements.

Task Messenger::move_out(OperationPtr send, uint64_t number) {
  ++moving_;
  const int to = send->message.peer;
  Transfer transfer;
  mesh_.link(to).send(transfer, tag_of(number), send->tensors.front().input, bytes_of(*send),
                      send->description.priority);
  const Status status = ended(to, send->process_set, co_await transfer);
  host_.message_done(send, status);
  host_.transfer_ended();
  co_return status;
}

Task Messenger::move_in(OperationPtr receive, int source, uint64_t number) {
  ++moving_;
  const OperationTensor& tensor = receive->tensors.front();
  uint64_t bytes = size_of(receive->message.dtype);
  for (const int64_t extent : tensor.result_shape) bytes *= static_cast<uint64_t>(extent);
  Transfer transfer;
  mesh_.link(source).receive(transfer, tag_of(number), tensor.output, bytes);
  clear(source, number);
  const Status status = ended(source, receive->process_set, co_await transfer);
  host_.message_done(receive, status);
  host_.transfer_ended();
  co_return status;
}

Task Messenger::move_ahead(KeptMessagePtr message) {
  ++moving_;
  const int source = message->source;
  Transfer transfer;
  mesh_.link(source).receive(transfer, tag_of(message->envelope.number), message->data.data(),
                             message->envelope.bytes());
  clear(source, message->envelope.number);
  const Status status = ended(source, message->envelope.process_set, co_await transfer);
  message->elements = KeptMessage::Elements::kHere;
  const OperationPtr receive = std::exchange(message->receive, nullptr);
  if (status.is_ok() && receive != nullptr) {
    deliver_kept(message, receive);
  } else if (!status.is_ok() || message->is_dropped) {
    peers_[source].held -= cost_of(message->envelope.bytes());
    mailbox_.drop_messages([&](const KeptMessage& kept) { return &kept == message.get(); });
    if (receive != nullptr) host_.message_done(receive, status);
    clear_ahead(source);
  }
  host_.transfer_ended();
  co_return status;
}

Status Messenger::ended(int peer, int32_t set, const Status& status) {
  --moving_;
  if (status.is_ok()) return status;
  // Others can go on without a rank that has left in the middle of a message.
  if (mesh_.has_left(peer)) return host_.without(peer, set);
  return host_.transfer_failed(status);
}

// ---- Room for what nobody has asked for.

void Messenger::clear_ahead(int rank) {
  Peer& peer = peers_[rank];
  while (!peer.announced.empty()) {
    const KeptMessagePtr message = peer.announced.front();
    const uint64_t bytes = message->envelope.bytes();
    if (peer.held + cost_of(bytes) > most_held_) return;
    message->data = buffers_.take(bytes);
    if (!message->data) return;  // it stays where it is until it is asked for
    peer.announced.pop_front();
    peer.held += cost_of(bytes);
    if (bytes == 0) {
      message->elements = KeptMessage::Elements::kHere;
      clear(rank, message->envelope.number);
      continue;
    }
    message->elements = KeptMessage::Elements::kArriving;
    move_ahead(message).start(nullptr);
  }
}

void Messenger::give_back(int rank, uint64_t bytes) {
  Peer& peer = peers_[rank];
  peer.untaken -= bytes;
  peer.to_return += bytes;
  if (peer.to_return < window_ / 2) return;
  tell(rank, Credit{std::exchange(peer.to_return, 0)});
}

void Messenger::clear(int rank, uint64_t number, const Status& refusal) {
  tell(rank, Clearance{number, refusal});
}

void Messenger::forget(KeptMessage& message, const Status& why) {
  const int source = message.source;
  const uint64_t cost = cost_of(message.envelope.bytes());
  if (message.own_send != nullptr) {
    return host_.message_done(std::exchange(message.own_send, nullptr), why);
  }
  switch (message.elements) {
    case KeptMessage::Elements::kAtSender:
      std::erase_if(peers_[source].announced,
                    [&](const KeptMessagePtr& announced) { return announced.get() == &message; });
      return clear(source, message.envelope.number, why);
    case KeptMessage::Elements::kArriving: message.is_dropped = true; return;
    case KeptMessage::Elements::kHere: break;
  }
  if (message.envelope.is_whole && source != rank_) {
    give_back(source, cost);
  } else {
    peers_[source].held -= cost;
  }
}

// ---- Ends.

void Messenger::end_set(int32_t set, const Status& why) {
  const auto is_of_set = [set](const Operation& receive) { return receive.process_set == set; };
  for (const OperationPtr& receive : mailbox_.take_receives(is_of_set)) {
    host_.message_done(receive, why);
  }
  for (auto& [place, announced] : sends_) {
    if (announced.send->process_set != set || !announced.withdrawn.is_ok()) continue;
    announced.withdrawn = why;
    tell(place.first, Withdrawal{place.second});
  }
  mailbox_.drop_messages([&](KeptMessage& message) {
    if (message.envelope.process_set != set) return false;
    forget(message, why);
    return true;
  });
  departed_.forget(set);
}

void Messenger::end_all(const Status& why) {
  has_ended_ = true;
  const auto is_any = [](const Operation&) { return true; };
  for (const OperationPtr& receive : mailbox_.take_receives(is_any)) {
    host_.message_done(receive, why);
  }
  for (auto& [place, announced] : std::exchange(sends_, {})) {
    host_.message_done(announced.send, why);
  }
  mailbox_.drop_messages([&](KeptMessage& message) {
    if (message.own_send != nullptr) host_.message_done(message.own_send, why);
    return true;
  });
  departed_.clear();
}

void Messenger::on_leaving(int rank) {
  if (has_ended_ || rank == rank_) return;
  for (auto place = sends_.begin(); place != sends_.end();) {
    if (place->first.first != rank) {
      ++place;
      continue;
    }
    const OperationPtr send = place->second.send;
    place = sends_.erase(place);
    host_.message_done(send, host_.without(rank, send->process_set));
  }
  departed_.add(rank, DepartedSenders::kAllSets);
}

// The rank still answers, and refuses what it gets.
void Messenger::on_closed(int32_t set, int rank) {
  if (!has_ended_ && rank != rank_) departed_.add(rank, set);
}

void Messenger::fail_hopeless() {
  const auto is_one = [this](const Operation& receive) { return is_hopeless(receive); };
  for (const OperationPtr& receive : mailbox_.take_receives(is_one)) {
    host_.message_done(receive, host_.without(receive->message.peer, receive->process_set));
  }
}

bool Messenger::is_hopeless(const Operation& receive) const {
  const int32_t set = receive.process_set;
  if (receive.message.peer != MessageEnds::kAny)
    return departed_.has_gone(receive.message.peer, set);
  if (departed_.is_empty()) return false;
  const std::span<const int> ranks = host_.ranks_of(set);
  return ranks.size() > 1 && std::ranges::all_of(ranks, [&](int rank) {
           return rank == rank_ || departed_.has_gone(rank, set);
         });
}

// ---- For the watches.

void Messenger::add_awaited(std::set<int>& ranks) const {
  const auto add = [&](int rank, int32_t set) {
    if (rank != rank_ && !host_.has_left(rank) && !departed_.has_gone(rank, set))
      ranks.insert(rank);
  };
  for_each_waiting([&](const Operation& operation) {
    if (operation.message.peer != MessageEnds::kAny) {
      return add(operation.message.peer, operation.process_set);
    }
    for (const int rank : host_.ranks_of(operation.process_set)) add(rank, operation.process_set);
  });
}

void Messenger::for_each_waiting(const std::function<void(const Operation&)>& visit) const {
  mailbox_.for_each_receive(visit);
  for (const auto& [place, announced] : sends_) visit(*announced.send);
}

std::string Messenger::last_from(int rank) const {
  const Peer& peer = peers_[rank];
  if (peer.received == 0) return "which has sent nothing";
  return "which last sent tag " + std::to_string(peer.last_tag);
}

}  // namespace perseus
