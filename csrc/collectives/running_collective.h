// Holds the state that every algorithm has while it runs, and sends and receives under its tags.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/reduction.h"
#include "base/status.h"
#include "base/task.h"
#include "base/types.h"
#include "collectives/collective.h"
#include "transport/link.h"

namespace perseus {

// A Transfer that may turn out to have no bytes. An empty message is not sent at all: both ends
// know its size. Awaiting a Message that was not begun succeeds at once. Await each once.
class Message {
 public:
  bool await_ready() const noexcept { return !begun_ || transfer_.await_ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { transfer_.await_suspend(waiter); }
  Status await_resume() { return begun_ ? transfer_.await_resume() : Status::ok(); }

 private:
  friend class RunningCollective;
  Transfer transfer_;
  bool begun_ = false;
};

inline void keep_first_error(Status& first, const Status& next) {
  if (first.is_ok()) first = next;
}

// Awaits all of them. Returns the first error.
Task await_all(std::span<Message> messages);

// A message to send, and memory for one to receive. With a `reduction` the arriving elements are
// folded into the target.
struct Outgoing {
  int to;
  const void* data;
  uint64_t bytes;
};
struct Incoming {
  int from;
  void* target;
  uint64_t bytes;
  const Reduction* reduction = nullptr;
};

// One run of a collective. The group and the options must outlive it. `step` counts from the
// options' first_step.
class RunningCollective {
 public:
  RunningCollective(const Group& group, const CollectiveOptions& options)
      : group_(group), options_(options) {}

  const Group& group() const { return group_; }
  BufferPool& buffers() const { return *options_.buffers; }
  // The rank that is `distance` (0 to size) after or before this one, counted round the group.
  int rank_after(int distance) const { return (group_.index + distance) % group_.size; }
  int rank_before(int distance) const {
    return (group_.index - distance + group_.size) % group_.size;
  }

  void send(Message& message, int to, uint32_t step, const void* data, uint64_t bytes) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[to]->send(message.transfer_, tag(step), data, bytes, options_.priority);
  }
  // The same for bytes that go to several ranks under one `shared`.
  void send(Message& message, int to, uint32_t step, const void* data, uint64_t bytes,
            SharedPayload& shared) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[to]->send(message.transfer_, tag(step), data, bytes, options_.priority, &shared);
  }
  void receive(Message& message, int from, uint32_t step, void* target, uint64_t bytes,
               const Reduction* reduction = nullptr) const {
    if (bytes == 0) return;
    message.begun_ = true;
    group_.links[from]->receive(message.transfer_, tag(step), target, bytes, reduction,
                                options_.streaming);
  }
  // Sends one message while another arrives, both under the same step. Returns when both are done.
  Task exchange(uint32_t step, Outgoing outgoing, Incoming incoming) const;

 private:
  Tag tag(uint32_t step) const {
    return {options_.operation, options_.shard, options_.first_step + step};
  }

  const Group& group_;
  const CollectiveOptions& options_;
};

// A collective that reduces `in` to `out`.
struct RunningReduction : RunningCollective {
  RunningReduction(const Group& group, const CollectiveOptions& options, const void* in, void* out,
                   DataType type, const Reduction& reduction, double factor)
      : RunningCollective(group, options),
        in(static_cast<const std::byte*>(in)),
        out(static_cast<std::byte*>(out)),
        type(type),
        element_size(size_of(type)),
        reduction(reduction),
        factor(factor) {}

  const std::byte* in;
  std::byte* out;
  DataType type;
  size_t element_size;
  Reduction reduction;
  double factor;  // that each reduced element is multiplied by
};

}  // namespace perseus
