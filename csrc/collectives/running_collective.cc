#include "collectives/running_collective.h"

namespace perseus {

Task await_all(std::span<Message> messages) {
  Status status;
  for (Message& message : messages) {
    Status moved = co_await message;
    keep_first_error(status, moved);
  }
  co_return status;
}

Task RunningCollective::exchange(uint32_t step, Outgoing outgoing, Incoming incoming) const {
  Message sending, receiving;
  receive(receiving, incoming.from, step, incoming.target, incoming.bytes, incoming.reduction);
  send(sending, outgoing.to, step, outgoing.data, outgoing.bytes);
  Status sent = co_await sending;
  Status received = co_await receiving;
  keep_first_error(sent, received);
  co_return sent;
}

}  // namespace perseus
