#include "turns.h"

#include <utility>

namespace perseus::mxnet {

Turns::Ticket Turns::take(int32_t id) {
  const std::lock_guard lock(mutex_);
  return queues_[id].calls.emplace_back(new QueuedCall(id));
}

void Turns::begin(const Ticket& ticket, std::function<void()> begin) {
  std::unique_lock lock(mutex_);
  ticket->begin_ = std::move(begin);
  advance(ticket->id_, lock);
}

void Turns::end(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  queues_.at(ticket->id_).calls.pop_front();
  advance(ticket->id_, lock);
}

// A loop rather than recursion: if many calls fail at once, each of them ends within its own
// begin().
void Turns::advance(int32_t id, std::unique_lock<std::mutex>& lock) {
  CallQueue& queue = queues_.at(id);
  if (std::exchange(queue.is_advancing, true)) return;
  while (!queue.calls.empty() && queue.calls.front()->begin_) {
    const std::function<void()> begin = std::exchange(queue.calls.front()->begin_, nullptr);
    lock.unlock();
    begin();
    lock.lock();
  }
  queue.is_advancing = false;
  if (queue.calls.empty()) queues_.erase(id);
}

// Never destroyed: MXNet's threads may outlive static objects.
Turns& turns() {
  static Turns& the_one = *new Turns;
  return the_one;
}

}  // namespace perseus::mxnet
