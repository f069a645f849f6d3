#include "messages/messenger.h"

namespace perseus {

Messenger::Messenger(EventLoop& loop, Mesh& mesh, BufferPool& buffers, GpuThreads& gpus,
                     Counters& counters, uint64_t credit, MessengerHost& host)
    : lines_(mesh, buffers, gpus, counters, credit, host),
      departed_(loop, mesh, [this] { incoming_.fail_hopeless(); }),
      outgoing_(lines_, departed_),
      incoming_(lines_, departed_) {}

void Messenger::submit(const OperationPtr& operation) {
  if (operation->description.kind != OperationKind::kSend) return incoming_.submit(operation);
  if (operation->message.peer == lines_.rank) return incoming_.submit_own(operation);
  outgoing_.submit(operation);
}

void Messenger::on_control(int from, ControlKind kind, ByteReader reader) {
  switch (kind) {
    case ControlKind::kEnvelope: return incoming_.on_envelope(from, reader);
    case ControlKind::kClearance:
      if (const auto clearance = Clearance::read(reader)) {
        return outgoing_.on_clearance(from, *clearance);
      }
      break;
    case ControlKind::kWithdrawal:
      if (const auto withdrawal = Withdrawal::read(reader)) {
        return incoming_.on_withdrawal(from, *withdrawal);
      }
      break;
    case ControlKind::kCredit:
      if (const auto credit = Credit::read(reader); credit && outgoing_.on_credit(from, *credit)) {
        return;
      }
      break;
    default: break;
  }
  lines_.host.on_malformed_message(from);
}

void Messenger::on_leaving(int rank) {
  if (has_ended_ || rank == lines_.rank) return;
  outgoing_.on_leaving(rank);
  departed_.add(rank, DepartedSenders::kAllSets);
}

// The rank still answers, and refuses what it gets.
void Messenger::on_closed(int32_t set, int rank) {
  if (!has_ended_ && rank != lines_.rank) departed_.add(rank, set);
}

void Messenger::end_set(int32_t set, const Status& why) {
  incoming_.end_set(set, why);
  outgoing_.end_set(set, why);
  departed_.forget(set);
}

void Messenger::end_all(const Status& why) {
  has_ended_ = true;
  incoming_.end_all(why);
  outgoing_.end_all(why);
  departed_.clear();
}

void Messenger::add_awaited(std::set<int>& ranks) const {
  const auto add = [&](int rank, int32_t set) {
    if (rank != lines_.rank && !lines_.host.has_left(rank) && !departed_.has_gone(rank, set)) {
      ranks.insert(rank);
    }
  };
  for_each_waiting([&](const Operation& operation) {
    const int32_t set = operation.process_set;
    if (operation.message.peer != MessageEnds::kAny) return add(operation.message.peer, set);
    for (const int rank : lines_.host.ranks_of(set)) add(rank, set);
  });
}

void Messenger::for_each_waiting(const std::function<void(const Operation&)>& visit) const {
  incoming_.for_each_waiting(visit);
  outgoing_.for_each_waiting(visit);
}

}  // namespace perseus
