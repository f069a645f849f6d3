#include "turns.h"

#include <utility>

namespace perseus::mxnet {

Turns::Ticket Turns::take(int32_t id) {
  const std::lock_guard lock(mutex_);
  return lines_[id].places.emplace_back(new Place(id));
}

void Turns::begin(const Ticket& ticket, std::function<void()> begin) {
  std::unique_lock lock(mutex_);
  ticket->begin_ = std::move(begin);
  advance(ticket->id_, lock);
}

void Turns::end(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  lines_.at(ticket->id_).places.pop_front();
  advance(ticket->id_, lock);
}

// A loop rather than recursion: if many calls fail at once, each of them ends within its own
// begin().
void Turns::advance(int32_t id, std::unique_lock<std::mutex>& lock) {
  Line& line = lines_.at(id);
  if (std::exchange(line.is_advancing, true)) return;
  while (!line.places.empty() && line.places.front()->begin_) {
    const std::function<void()> begin = std::exchange(line.places.front()->begin_, nullptr);
    lock.unlock();
    begin();
    lock.lock();
  }
  line.is_advancing = false;
  if (line.places.empty()) lines_.erase(id);
}

// Never destroyed: MXNet's threads may outlive static objects.
Turns& turns() {
  static Turns& the_one = *new Turns;
  return the_one;
}

}  // namespace perseus::mxnet
