#include "schedule/admission.h"

#include <algorithm>
#include <utility>

namespace perseus {

void Admission::add(Ticket* ticket) {
  ticket->order = next_order_++;
  ticket->state = Ticket::State::kWaiting;
  unfinished_ += 1;
  bytes_unfinished_ += ticket->bytes;
  ticket->is_listed = true;
  waiting_.push_back(ticket);
  std::push_heap(waiting_.begin(), waiting_.end(), Later{});
  ticket->next = nullptr;
  Queue& queue = queues_[ticket->process_set];
  (queue.first == nullptr ? queue.first : queue.last->next) = ticket;
  queue.last = ticket;
}

Ticket* Admission::start_next() {
  Ticket* ticket = oldest_waiting_head();
  if (ticket == nullptr) {
    ticket = most_urgent();
    if (ticket == nullptr || !has_room_for(*ticket)) return nullptr;
  }
  run(ticket);
  return ticket;
}

Ticket* Admission::oldest_waiting_head() const {
  for (const auto& [set, queue] : queues_) {
    if (queue.first != nullptr && queue.first->state == Ticket::State::kWaiting) {
      return queue.first;
    }
  }
  return nullptr;
}

Ticket* Admission::most_urgent() {
  drop_started();
  return waiting_.empty() ? nullptr : waiting_.front();
}

void Admission::drop_started() {
  while (!waiting_.empty() && waiting_.front()->state != Ticket::State::kWaiting) {
    std::pop_heap(waiting_.begin(), waiting_.end(), Later{});
    waiting_.back()->is_listed = false;
    waiting_.pop_back();
  }
}

bool Admission::has_room_for(const Ticket& ticket) const {
  uint64_t bytes_ahead = 0;
  for (const Ticket* other : running_tickets_) {
    if (other->priority >= ticket.priority) bytes_ahead += other->bytes;
  }
  // Where the number of shards is limited, one more may run if it is more urgent than all the
  // others.
  if (bytes_ahead == 0 && running_ <= streams_) return true;
  return running_ < streams_ && bytes_ahead + ticket.bytes <= credit_bytes_;
}

void Admission::run(Ticket* ticket) {
  ticket->state = Ticket::State::kRunning;
  const auto free_stream = std::find(stream_used_.begin(), stream_used_.end(), false);
  ticket->timeline_row = static_cast<int>(free_stream - stream_used_.begin());
  if (free_stream == stream_used_.end()) {
    stream_used_.push_back(true);
  } else {
    *free_stream = true;
  }
  running_ += 1;
  running_tickets_.push_back(ticket);
}

void Admission::finish(Ticket* ticket) {
  ticket->state = Ticket::State::kFinished;
  stream_used_[ticket->timeline_row] = false;
  running_ -= 1;
  unfinished_ -= 1;
  bytes_unfinished_ -= ticket->bytes;
  std::erase(running_tickets_, ticket);

  Ticket*& oldest = queues_[ticket->process_set].first;
  while (oldest != nullptr && oldest->state == Ticket::State::kFinished) {
    collected_.push_back(oldest);
    oldest = oldest->next;
  }
}

std::span<Ticket* const> Admission::collect() {
  // The heap must not keep tickets that are about to be returned. Most were at its front, since
  // those start first. Searching for the others takes long where many wait.
  drop_started();
  if (std::ranges::any_of(collected_, &Ticket::is_listed)) {
    std::erase_if(waiting_, [](Ticket* ticket) {
      ticket->is_listed = ticket->state == Ticket::State::kWaiting;
      return !ticket->is_listed;
    });
    std::make_heap(waiting_.begin(), waiting_.end(), Later{});
  }
  given_back_.clear();
  given_back_.swap(collected_);
  return given_back_;
}

std::vector<Ticket*> Admission::cancel_waiting() {
  std::vector<Ticket*> cancelled;
  for (auto& [set, queue] : queues_) {
    // Running tickets stay, to be collected in their order. Cancelled ones are returned at once.
    Queue staying;
    for (Ticket* ticket = queue.first; ticket != nullptr; ticket = ticket->next) {
      if (ticket->state == Ticket::State::kWaiting) {
        ticket->state = Ticket::State::kFinished;
        unfinished_ -= 1;
        bytes_unfinished_ -= ticket->bytes;
        cancelled.push_back(ticket);
      } else {
        (staying.first == nullptr ? staying.first : staying.last->next) = ticket;
        staying.last = ticket;
      }
    }
    if (staying.last != nullptr) staying.last->next = nullptr;
    queue = staying;
  }
  waiting_.clear();
  return cancelled;
}

}  // namespace perseus
