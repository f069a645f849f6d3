#include "network.h"

#include <algorithm>
#include <utility>

namespace perseus::simulation {
namespace {

Nanoseconds time_of(size_t bytes, const LinkModel& link) {
  return static_cast<Nanoseconds>(static_cast<double>(bytes) / link.bytes_per_ns);
}

}  // namespace

Network::Network(int size, const Model& model)
    : model_(model),
      cpu_free_(size),
      sending_free_(host_of(size - 1) + 1),
      arriving_free_(host_of(size - 1) + 1),
      traffic_(size) {}

const LinkModel& Network::link(const Message& message) const {
  return host_of(message.from) == host_of(message.to) ? model_.inside : model_.between;
}

void Network::at(Nanoseconds time, Stage stage, uint32_t subject) {
  events_.push({time, sequence_++, stage, subject});
}

void Network::start_at(int rank, Nanoseconds time) {
  at(time, Stage::kStart, static_cast<uint32_t>(rank));
}

void Network::send(Message message) {
  const int from = message.from;
  traffic_[from].messages_sent += 1;
  traffic_[from].bytes_sent += message.size;
  spend(from, link(message).overhead);
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<uint32_t>(under_way_.size()));
    under_way_.emplace_back();
  }
  const uint32_t place = free_places_.back();
  free_places_.pop_back();
  under_way_[place] = std::move(message);
  at(now(from), Stage::kDepart, place);
}

void Network::run(Ranks& ranks) {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    switch (event.stage) {
      case Stage::kStart:
        cpu_free_[event.subject] = std::max(cpu_free_[event.subject], event.time);
        ranks.start(static_cast<int>(event.subject));
        break;
      case Stage::kDepart: depart(event.time, event.subject); break;
      case Stage::kReachCard: reach_card(event.time, event.subject); break;
      case Stage::kDeliver: deliver(event.time, event.subject, ranks); break;
    }
  }
}

void Network::depart(Nanoseconds time, uint32_t place) {
  const Message& message = under_way_[place];
  const LinkModel& link = this->link(message);
  if (&link == &model_.inside) {
    at(time + link.latency + time_of(message.size, link), Stage::kDeliver, place);
    return;
  }
  Nanoseconds& card_free = sending_free_[host_of(message.from)];
  const Nanoseconds begin = std::max(time, card_free);
  card_free = begin + time_of(message.size, link);
  at(begin + link.latency, Stage::kReachCard, place);
}

void Network::reach_card(Nanoseconds time, uint32_t place) {
  const Message& message = under_way_[place];
  Nanoseconds& card_free = arriving_free_[host_of(message.to)];
  card_free = std::max(time, card_free) + time_of(message.size, link(message));
  at(card_free, Stage::kDeliver, place);
}

void Network::deliver(Nanoseconds time, uint32_t place, Ranks& ranks) {
  const Message message = std::move(under_way_[place]);
  free_places_.push_back(place);
  traffic_[message.to].messages_received += 1;
  traffic_[message.to].bytes_received += message.size;
  cpu_free_[message.to] = std::max(cpu_free_[message.to], time) + link(message).overhead;
  ranks.receive(message.to, message);
}

void Network::forget_traffic() { std::fill(traffic_.begin(), traffic_.end(), Traffic{}); }

}  // namespace perseus::simulation
