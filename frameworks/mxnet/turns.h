// Starts calls of one name in the order in which they were made, each when the one before it has
// ended. MXNet may have them ready in any order, but ranks match them by their order.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace perseus::mxnet {

// Any thread.
class Turns {
 public:
  // A call of the name with this id.
  class QueuedCall {
    friend class Turns;
    explicit QueuedCall(int32_t id) : id_(id) {}
    const int32_t id_;
    std::function<void()> begin_;
  };
  using Ticket = std::shared_ptr<QueuedCall>;

  Ticket take(int32_t id);
  // Calls `begin` when the ticket's turn comes, on the thread that ends the turn before, or on this
  // one.
  void begin(const Ticket& ticket, std::function<void()> begin);
  // Ends the turn of a call that has begun.
  void end(const Ticket& ticket);

 private:
  struct CallQueue {
    std::list<Ticket> calls;  // it is the first one's turn
    bool is_advancing = false;
  };

  void advance(int32_t id, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::unordered_map<int32_t, CallQueue> queues_;  // by id; none is empty
};

Turns& turns();

}  // namespace perseus::mxnet
