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
// What links need to be made, as a rule.
constexpr std::chrono::milliseconds kConnectTime{500};
// How long shutdown waits for what has been agreed on to end, and then for other ranks to take what
// was sent to them.
constexpr std::chrono::milliseconds kLinger{2000};

Status shut_down_status() {
  return Status::aborted(
      "Perseus has been shut down on this rank: the operation was still under way, or came after; "
      "call init() again before any other");
}

void tell_launcher(const std::string& line) {
  const char* fd = std::getenv("PERSEUS_NEWS_FD");
  if (fd == nullptr) return;
  // Nobody may be listening any more, and then nothing is lost.
  [[maybe_unused]] const ssize_t n = write(std::atoi(fd), (line + "\n").data(), line.size() + 1);
}

}  // namespace

Broken Engine::left(int rank) const {
  const auto leaving = left_.find(rank);
  std::string why = rank == rank_ ? why_leaving_ : "";
  if (leaving != left_.end()) why = leaving->second.why;
  const std::string name = topology().name(rank);
  if (!why.empty()) return {rank, name + " has ended: " + why, true};
  return {rank,
          name +
              " has shut down or ended, so operations with it cannot complete: look at what "
              "that rank printed, and let every rank submit the same operations before it "
              "shuts down",
          true};
}

// Whoever went first: others left because of it.
Broken Engine::lacking(const ProcessSet& set) const {
  const int rank = set.lacking;
  if (left_.contains(rank)) return left(rank);
  return {rank, topology().name(rank) + " has closed process set " + std::to_string(set.id), true};
}

void Engine::tell_neighbours(const ProcessSet& set, std::span<const std::byte> message) {
  for (const int peer : set.neighbours()) mesh_->send_control(peer, message);
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
    case ControlKind::kPressing: return on_pressing(from, reader, message);
    case ControlKind::kClosed:
      if (const auto closed = Closed::read(reader)) return on_closed(from, *closed);
      break;
  }
  break_world({from, topology().name(from) + " sent a malformed control message"});
}

void Engine::on_ballot(int from, ByteReader reader, std::span<const std::byte> message) {
  const auto id = reader.get<int32_t>();
  const ProcessSetPtr set = find_set(id);
  // The sender has seen the set made, or has not yet seen it removed.
  if (set == nullptr || set->negotiator == nullptr) return keep_early(id, from, message);
  counters_.agreement_messages_received.add();
  counters_.agreement_bytes_received.add(message.size());
  const size_t prefix = sizeof(ControlKind) + sizeof(id);
  const Status status = set->negotiator->receive(message.subspan(std::min(prefix, message.size())));
  if (!status.is_ok()) {
    return break_world({from, status.message() + " from " + topology().name(from)});
  }
  advance(*set);
}

void Engine::on_rank_lost(int rank, const Status& why) {
  if (closed_) return;
  if (!left_.contains(rank)) {
    // Who ended with an error before is to blame: others end because of it, and may be gone sooner.
    const auto first = left_.find(blamed_);
    const bool is_consequence = first != left_.end() && !first->second.why.empty();
    return break_world(is_consequence ? left(blamed_) : Broken{rank, why.message()});
  }
  // It ended before it had done what it still was to take part in.
  if (std::ranges::any_of(sets_, [&](const auto& entry) { return awaits(*entry.second, rank); })) {
    break_world(left(rank));
  }
}

bool Engine::awaits(const ProcessSet& set, int peer) const {
  return set.has(peer) && (!set.pending.empty() || executor_->is_running_after(set.id, 0));
}

// Nothing follows from the goodbye itself: which rounds the peer completed comes with its Leaving,
// which it sends to its neighbours and they to theirs, so it may arrive later than the goodbye.
void Engine::on_peer_left(int) {}

void Engine::on_leaving(const Leaving& leaving) {
  if (leaving.rank == rank_ || !left_.emplace(leaving.rank, leaving).second) return;
  tell_neighbours(world(), leaving.write());
  for (const auto& [id, set] : std::map(sets_)) apply_leaving(*set, leaving);
}

// Rounds that the leaver completed will complete here too, since it does its part of them before it
// goes. A later one may have been under way there: it may end here, but nothing then runs.
void Engine::apply_leaving(ProcessSet& set, const Leaving& leaving) {
  if (!set.has(leaving.rank) || set.negotiator == nullptr) return;
  set.negotiator->limit_rounds(leaving.last_round(set.id));
  if (set.broken.is_ok() && blamed_ < 0) {
    blamed_ = leaving.rank;
    blamed_has_left_ = true;
  }
  go_without(set, leaving.rank);
}

// A part of what runs without a rank that has gone may wait for another, which waits for that one:
// so nobody waits for what the links have to say.
void Engine::go_without(ProcessSet& set, int rank) {
  if (set.lacking < 0) set.lacking = rank;
  if (set.broken.is_ok()) set.broken = Status::without(set.lacking, lacking(set).why);
  advance(set);
  if (executor_->is_running_after(set.id, set.negotiator->last_round())) break_world(lacking(set));
}

void Engine::break_world(const Broken& broken) {
  if (!broken_.is_ok()) return;
  broken_ = Status::aborted(broken.why);
  if (!broken.has_left) PERSEUS_LOG(kError, broken.why);
  blamed_ = broken.rank;
  blamed_has_left_ = broken.has_left;
  tell_launcher_who_is_to_blame();
  {
    std::lock_guard lock(queue_mutex_);
    if (refusal_.is_ok()) refusal_ = broken_;
  }
  end_operations(broken);
}

void Engine::end_operations(const Broken& news) {
  tell_neighbours(world(), news.write());
  // The links close only when the news has had time to leave: else those who have not heard would
  // take this rank for the one that died.
  loop_.call_at(Clock::now() + kNewsTime, [this] {
    mesh_->fail_all(broken_);
    gpus_.abandon(broken_);
  });
  executor_->cancel_waiting(broken_);
  for (const auto& [id, set] : std::map(sets_)) {
    executor_->cancel_launches(*set, broken_);
    fail_pending(*set, broken_);
  }
  fail_closing(broken_);
}

void Engine::begin_shutdown(const std::string& why) {
  closing_ = true;
  why_leaving_ = why;
  {
    std::lock_guard lock(queue_mutex_);
    if (refusal_.is_ok()) refusal_ = shut_down_status();
  }
  if (broken_.is_ok()) {
    Leaving leaving;
    leaving.rank = rank_;
    leaving.why = why;
    for (const auto& [id, set] : sets_) {
      if (set->negotiator) leaving.rounds.emplace_back(id, set->negotiator->completed_rounds());
    }
    tell_neighbours(world(), leaving.write());
    for (const auto& [id, set] : sets_) fail_pending(*set, shut_down_status());
    fail_closing(shut_down_status());
    loop_.call_at(Clock::now() + kLinger, [this] { stop_taking_part(); });
  }
  close_when_idle();
}

void Engine::end_with_news(const Status& why) {
  // The links of a world that has just met are still being made.
  const auto connected = Clock::now() + kConnectTime;
  loop_.call_at(connected, [this, why] { break_world(failed_here(why)); });
  loop_.call_at(connected + 2 * kNewsTime, [this] { begin_shutdown(""); });
}

// Of what had been agreed on when shutdown began, something has not come to its end since.
void Engine::stop_taking_part() {
  if (closed_ || !broken_.is_ok()) return;
  broken_ = shut_down_status();
  end_operations(left(rank_));
}

Status Engine::over() const { return closing_ && broken_.is_ok() ? shut_down_status() : broken_; }

void Engine::close_when_idle() {
  if (!closing_ || closed_ || !executor_->is_idle()) return;
  closed_ = true;
  mesh_->close(kLinger, [this] { loop_.stop(); });
}

Broken Engine::failed_here(const Status& why) const {
  return {rank_, topology().name(rank_) + " cannot go on: " + why.message()};
}

// Other ranks may wait for what this one can no longer send.
Status Engine::shard_failed(const Status& status) {
  const int peer = status.peer();
  if (peer >= 0 && mesh_->has_left(peer)) {
    break_world(left(peer));
  } else {
    break_world(peer < 0 ? failed_here(status) : Broken{peer, status.message()});
  }
  return status.code() == StatusCode::kAborted ? broken_ : status;
}

// A rank that fails because another ended must not be taken for the culprit, though it may well be
// the first to exit.
void Engine::tell_launcher_who_is_to_blame() {
  if (blamed_ < 0 || blamed_ == rank_ || std::exchange(blame_is_told_, true)) return;
  tell_launcher(std::to_string(topology().launched[blamed_]) +
                (blamed_has_left_ ? " left" : " lost"));
}

// What was said of any of them before is no longer so.
void Engine::tell_launcher_who_met() {
  std::string line = "met";
  for (const int rank : topology().launched) line += " " + std::to_string(rank);
  tell_launcher(line);
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
  const std::string cause = mesh_->is_connected(rank)
                                ? "though its connections stand; its process is stopped, or gets "
                                  "no processor"
                                : "and does not connect; its process or host is stopped, or gets "
                                  "no processor";
  break_world({rank, "lost " + topology().name(rank) + ": it has said nothing for " +
                         std::to_string(settings_.peer_timeout) + " s (PERSEUS_PEER_TIMEOUT), " +
                         cause});
}

void Engine::end_stalled(const Status& why) { break_world({rank_, why.message()}); }

}  // namespace perseus
