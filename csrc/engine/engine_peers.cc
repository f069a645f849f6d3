// The engine's dealings with other ranks: control messages, leaving, death.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "observe/log.h"

namespace perseus {
namespace {

// How long bad news may take to leave.
constexpr std::chrono::milliseconds kNewsTime{100};

Status left_status(int rank) {
  return Status::aborted(
      "rank " + std::to_string(rank) +
      " has shut down or ended, so operations with it cannot complete: look at what "
      "that rank printed, and let every rank submit the same operations before it "
      "shuts down");
}

}  // namespace

void Engine::tell_neighbours(std::span<const std::byte> message) {
  for (int peer : neighbours_) mesh_->send_control(peer, message);
}

void Engine::on_control(int from, std::span<const std::byte> message) {
  peer_watch_->heard(from);
  ByteReader reader(message);
  switch (reader.get<ControlKind>()) {
    case ControlKind::kBallot: return on_ballot(from, reader, message);
    case ControlKind::kLeaving:
      if (const auto leaving = Leaving::read(reader)) return on_leaving(*leaving);
      break;
    case ControlKind::kBroken:
      if (const auto broken = Broken::read(reader)) return break_world(*broken);
      break;
    case ControlKind::kStallQuery:
      if (const auto query = StallQuery::read(reader)) {
        return stall_watch_->answer(from, *query, find_set(query->process_set).get());
      }
      break;
    case ControlKind::kStallAnswer:
      if (const auto answer = StallAnswer::read(reader))
        return stall_watch_->on_answer(from, *answer);
      break;
    case ControlKind::kAreYouThere: return send_word(from, ControlKind::kHere);
    case ControlKind::kHere: return;
  }
  break_world({from, "rank " + std::to_string(from) + " sent a malformed control message"});
}

void Engine::on_ballot(int from, ByteReader reader, std::span<const std::byte> message) {
  const auto id = reader.get<int32_t>();
  const ProcessSetPtr set = find_set(id);
  if (set == nullptr || set->negotiator == nullptr) {
    // The sender has seen the set made, or has not yet seen it removed.
    if (id >= next_set_ && !closed_sets_.contains(id))
      early_ballots_[id].emplace_back(from, std::vector(message.begin(), message.end()));
    return;
  }
  counters_.agreement_messages_received.add();
  counters_.agreement_bytes_received.add(message.size());
  const size_t prefix = sizeof(ControlKind) + sizeof(id);
  const Status status = set->negotiator->receive(message.subspan(std::min(prefix, message.size())));
  if (!status.is_ok()) {
    return break_world({from, status.message() + " from rank " + std::to_string(from)});
  }
  advance(*set);
}

void Engine::on_peer_lost(int peer, const Status& why) {
  if (left_.contains(peer) || closing_) return;
  break_world({peer, why.message()});
}

// Nothing follows from the goodbye itself: which rounds the peer completed comes with its Leaving,
// which it sends to its neighbours and they to theirs, so it may arrive later than the goodbye.
void Engine::on_peer_left(int) {}

void Engine::on_leaving(const Leaving& leaving) {
  if (leaving.rank == rank_ || !left_.emplace(leaving.rank, leaving).second) return;
  tell_neighbours(leaving.write());
  for (const auto& [id, set] : std::map(sets_)) apply_leaving(*set, leaving);
}

// Rounds that the leaver completed will complete here too, since it sent its part of them before;
// later ones cannot.
void Engine::apply_leaving(ProcessSet& set, const Leaving& leaving) {
  if (!set.has(leaving.rank) || set.negotiator == nullptr) return;
  const auto round = std::find_if(leaving.rounds.begin(), leaving.rounds.end(),
                                  [&](const auto& entry) { return entry.first == set.id; });
  set.negotiator->limit_rounds(round == leaving.rounds.end() ? set.negotiator->completed_rounds()
                                                             : round->second);
  if (set.broken.is_ok()) {
    set.broken = left_status(leaving.rank);
    if (blamed_ < 0) {
      blamed_ = leaving.rank;
      blamed_has_left_ = true;
    }
  }
  advance(set);
}

void Engine::break_world(const Broken& broken) {
  if (!broken_.is_ok()) return;
  broken_ = Status::aborted(broken.why);
  PERSEUS_LOG(kError, broken.why);
  blamed_ = broken.rank;
  blamed_has_left_ = false;
  tell_launcher();
  {
    std::lock_guard lock(queue_mutex_);
    if (refusal_.is_ok()) refusal_ = broken_;
  }
  tell_neighbours(broken.write());
  // The links close only when the news has had time to leave: else those who have not heard would
  // take this rank for the one that died.
  loop_.call_at(Clock::now() + kNewsTime, [this] { mesh_->fail_all(broken_); });
  executor_->cancel_waiting(broken_);
  for (const auto& [id, set] : sets_) fail_pending(*set, broken_);
}

// A rank that fails because another ended must not be taken for the culprit, though it may well be
// the first to exit.
void Engine::tell_launcher() {
  if (blamed_ < 0 || blamed_ == rank_ || std::exchange(blame_is_told_, true)) return;
  const char* fd = std::getenv("PERSEUS_BLAME_FD");
  if (fd == nullptr) return;
  const std::string line =
      std::to_string(launched_[blamed_]) + (blamed_has_left_ ? " left\n" : " lost\n");
  // Nobody may be listening any more, and then nothing is lost.
  [[maybe_unused]] const ssize_t n = write(std::atoi(fd), line.data(), line.size());
}

void Engine::send_to(int rank, std::span<const std::byte> message) {
  mesh_->send_control(rank, message);
}

void Engine::send_word(int rank, ControlKind word) {
  send_to(rank, std::as_bytes(std::span(&word, 1)));
}

std::set<int> Engine::awaited_peers() const {
  std::set<int> awaited;
  if (!broken_.is_ok()) return awaited;
  for (const auto& [id, set] : sets_) {
    if (set->negotiator == nullptr || (set->pending.empty() && executor_->is_idle())) continue;
    for (const int peer : set->neighbours()) {
      if (!left_.contains(peer)) awaited.insert(peer);
    }
  }
  return awaited;
}

void Engine::ask_whether_there(int rank) { send_word(rank, ControlKind::kAreYouThere); }

void Engine::on_silent_peer(int rank) {
  break_world({rank, "lost rank " + std::to_string(rank) + " on " + topology().host_name(rank) +
                         ": it has said nothing for " + std::to_string(settings_.peer_timeout) +
                         " s (PERSEUS_PEER_TIMEOUT), though its connections stand; its process is "
                         "stopped, or gets no processor"});
}

void Engine::end_stalled(const Status& why) { break_world({rank_, why.message()}); }

}  // namespace perseus
