#include "engine/process_sets.h"

#include <algorithm>
#include <string>

#include "base/settings.h"
#include "engine/agreements.h"
#include "engine/blame.h"
#include "engine/departures.h"
#include "engine/operation_tracker.h"
#include "engine/termination.h"
#include "messages/messenger.h"

namespace perseus {
namespace {

// How long closing a set waits for the round under way to end. If a member has not opened the set,
// the round may never end.
constexpr std::chrono::seconds kRoundTime{1};

bool is_known_to_all(int32_t id) { return id < ProcessSet::kFirstOpened; }

}  // namespace

ProcessSets::ProcessSets(const Wiring& wiring)
    : wiring_(wiring), rank_(wiring.mesh.topology().rank) {}

// ---- Which sets there are.

Result<SharedRanks> ProcessSets::ranks(int32_t set) const {
  if (set == ProcessSet::kWorld) return everyone_;
  std::lock_guard lock(ranks_mutex_);
  const auto found = ranks_.find(set);
  if (found == ranks_.end()) {
    return Status::invalid_argument("there is no process set " + std::to_string(set));
  }
  return found->second;
}

std::vector<int32_t> ProcessSets::ids() const {
  std::lock_guard lock(ranks_mutex_);
  std::vector<int32_t> ids;
  for (const auto& [id, ranks] : ranks_) ids.push_back(id);
  return ids;
}

ProcessSetPtr ProcessSets::find(int32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second;
}

bool ProcessSets::has_closed(int32_t id) const {
  const bool was_added = is_known_to_all(id) && id < next_id_ && !sets_.contains(id);
  return was_added || closed_.contains(id);
}

void ProcessSets::open_world() {
  std::vector<int> everyone(wiring_.mesh.topology().size);
  for (size_t rank = 0; rank < everyone.size(); ++rank) everyone[rank] = static_cast<int>(rank);
  everyone_ = std::make_shared<const std::vector<int>>(everyone);
  open(next_id_++, std::move(everyone));
}

void ProcessSets::open(int32_t id, std::vector<int> ranks) {
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  set->ranks = ranks;
  set->index = set->index_of(rank_);
  if (set->index >= 0) {
    std::vector<Link*> links;
    std::vector<int> host_of, cache_of;
    const Topology& topology = wiring_.mesh.topology();
    for (int rank : ranks) {
      links.push_back(rank == rank_ ? nullptr : &wiring_.mesh.link(rank));
      host_of.push_back(topology.host_of[rank]);
      if (wiring_.mesh.shares_all_memory()) cache_of.push_back(topology.cache_of[rank]);
    }
    set->group = make_group(set->index, std::move(links), std::move(host_of), cache_of);
    ByteWriter prefix;
    prefix.put(ControlKind::kBallot);
    prefix.put(id);
    set->host = wiring_.agreements.host_of(*set);
    set->negotiator = std::make_unique<Negotiator>(
        set->index, set->group.size, ranks, static_cast<size_t>(wiring_.settings.cache_capacity),
        std::vector<std::byte>(prefix.bytes().begin(), prefix.bytes().end()), *set->host);
  }
  sets_[id] = set;
  {
    std::lock_guard lock(ranks_mutex_);
    ranks_[id] = std::make_shared<const std::vector<int>>(std::move(ranks));
  }
  for (const auto& [rank, leaving] : wiring_.departures.by_rank()) apply_leaving(*set, leaving);
  if (auto early = early_messages_.extract(id); !early.empty()) {
    for (const auto& [from, message] : early.mapped()) on_control(from, message);
  }
}

void ProcessSets::close(int32_t id) {
  const ProcessSetPtr set = find(id);
  const Status why = set_is_gone(id);
  fail_pending(*set, why);
  wiring_.executor.cancel_launches(*set, why);
  wiring_.messenger.end_set(id, why);
  sets_.erase(id);
  std::lock_guard lock(ranks_mutex_);
  ranks_.erase(id);
}

Status ProcessSets::set_is_gone(int32_t id) {
  const char* const how = is_known_to_all(id) ? " has been removed" : " has been closed";
  return Status::invalid_argument("process set " + std::to_string(id) + how);
}

// Every rank of the world does this at the same place in the order of operations, and so gets the
// same ids and the same errors.
Status ProcessSets::add_or_remove(const Agreement::Ready& ready, Operation* operation) {
  const std::vector<int32_t>& ranks = ready.description().ranks;
  if (ready.description().kind == OperationKind::kRemoveProcessSet) {
    const int32_t id = ranks.front();
    if (id == ProcessSet::kWorld || !is_known_to_all(id) || find(id) == nullptr) {
      return Status::invalid_argument("there is no process set " + std::to_string(id) +
                                      " that could be removed");
    }
    close(id);
    return {};
  }
  for (const auto& [id, set] : sets_) {
    if (!is_known_to_all(id)) break;
    if (std::equal(set->ranks.begin(), set->ranks.end(), ranks.begin(), ranks.end())) {
      return Status::invalid_argument("a process set of the same ranks exists already: set " +
                                      std::to_string(id));
    }
  }
  const int32_t id = next_id_++;
  open(id, {ranks.begin(), ranks.end()});
  if (operation != nullptr) operation->new_set = id;
  return {};
}

// ---- Messages about one set.

void ProcessSets::on_control(int from, std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto kind = reader.get<ControlKind>();
  ByteReader body = reader;
  const auto id = reader.get<int32_t>();
  const ProcessSetPtr set = find(id);
  // The sender has already made the set, or has not yet removed it.
  if (set == nullptr || set->negotiator == nullptr) return keep_early(id, from, message);
  if (kind == ControlKind::kBallot) return on_ballot(*set, from, reader, message);
  if (kind == ControlKind::kRoundDemand) {
    if (const auto demand = RoundDemand::read(body)) {
      return on_round_demand(*set, from, demand->round);
    }
  } else if (const auto closed = Closed::read(body); closed && set->has(closed->rank)) {
    return on_closed(*set, *closed);
  }
  wiring_.termination.break_world(
      {from, wiring_.mesh.topology().name(from) + " sent a malformed control message"});
}

void ProcessSets::on_ballot(ProcessSet& set, int from, ByteReader reader,
                            std::span<const std::byte> message) {
  wiring_.counters.agreement_messages_received.add();
  wiring_.counters.agreement_bytes_received.add(message.size());
  const Status status = set.negotiator->receive(message.last(reader.remaining()));
  if (!status.is_ok()) {
    return wiring_.termination.break_world(
        {from, status.message() + " from " + wiring_.mesh.topology().name(from)});
  }
  wiring_.agreements.advance(set);
}

void ProcessSets::on_round_demand(ProcessSet& set, int from, uint64_t round) {
  // A rank can be at most one round ahead.
  if (round > set.negotiator->completed_rounds() + 2) {
    return wiring_.termination.break_world(
        {from, wiring_.mesh.topology().name(from) + " demands a round that it cannot be in"});
  }
  set.negotiator->demand(round);
  wiring_.agreements.advance(set);
}

// The member that closes the set has done its part of the rounds that it ended.
void ProcessSets::on_closed(ProcessSet& set, const Closed& closed) {
  if (!set.negotiator->limit_rounds(closed.last_round)) return;
  tell_neighbours(set, closed.write());
  wiring_.messenger.on_closed(set.id, closed.rank);
  on_member_gone(set, closed.rank);
}

void ProcessSets::keep_early(int32_t set, int from, std::span<const std::byte> message) {
  if (set < next_id_ || closed_.contains(set)) return;
  early_messages_[set].emplace_back(from, Message(message.begin(), message.end()));
}

void ProcessSets::tell_neighbours(const ProcessSet& set, std::span<const std::byte> message) {
  for (const int peer : set.neighbours()) wiring_.mesh.send_control(peer, message);
}

// ---- Sets that only their members know. The engine's thread opens and closes them by itself,
// without an agreement.

void ProcessSets::open_or_close(const OperationPtr& operation) {
  const Status world_has_ended = wiring_.termination.reason();
  if (operation->description.kind != OperationKind::kRemoveProcessSet) {
    wiring_.tracker.complete(
        operation, world_has_ended.is_ok() ? open_by_members(*operation) : world_has_ended);
  } else if (world_has_ended.is_ok()) {
    begin_closing(operation);
  } else {
    wiring_.tracker.complete(operation, {});  // the set has ended with the world
  }
}

Status ProcessSets::open_by_members(const Operation& operation) {
  const int32_t id = operation.new_set;
  if (find(id) != nullptr || closed_.contains(id)) {
    return Status::invalid_argument("process set " + std::to_string(id) +
                                    " cannot be opened: the id has been used before");
  }
  open(id, {operation.description.ranks.begin(), operation.description.ranks.end()});
  return {};
}

// A round that has this rank's ballot may end on some members, which then run what is ready. So the
// round must end here as well, and this rank does its part.
void ProcessSets::begin_closing(const OperationPtr& operation) {
  const int32_t id = operation->new_set;
  const ProcessSetPtr set = find(id);
  if (set == nullptr || closing_.contains(id)) {
    return wiring_.tracker.complete(
        operation, Status::invalid_argument("process set " + std::to_string(id) + " is not open"));
  }
  closing_[id] = operation;
  if (set->broken.is_ok()) set->broken = set_is_gone(id);
  Negotiator& negotiator = *set->negotiator;
  negotiator.limit_rounds(negotiator.completed_rounds() + (negotiator.is_in_round() ? 1 : 0));
  if (!negotiator.is_exhausted()) {
    wiring_.agreements.request_round(*set);
    wiring_.loop.call_at(Clock::now() + kRoundTime, [this, id] { finish_closing(id); });
  }
  wiring_.agreements.advance(*set);
}

void ProcessSets::on_exhausted(const ProcessSet& set) {
  // The caller may still need the set.
  if (closing_.contains(set.id)) wiring_.loop.post([this, id = set.id] { finish_closing(id); });
}

void ProcessSets::finish_closing(int32_t id) {
  const auto closing = closing_.extract(id);
  if (closing.empty()) return;
  const ProcessSetPtr set = find(id);
  const Closed closed{id, rank_, set->negotiator->completed_rounds()};
  tell_neighbours(*set, closed.write());
  close(id);
  closed_[id] = closed.last_round;
  wiring_.tracker.complete(closing.mapped(), {});
}

// ---- Ranks that leave, and the end.

void ProcessSets::on_leaving(const Leaving& leaving) {
  for (const auto& [id, set] : std::map(sets_)) apply_leaving(*set, leaving);
}

// Rounds that the leaving rank completed will complete here, too, since it does its part of them
// before it goes. A later round may have been under way there. That one may end here, but nothing
// that it agrees on runs.
void ProcessSets::apply_leaving(ProcessSet& set, const Leaving& leaving) {
  if (!set.has(leaving.rank) || set.negotiator == nullptr) return;
  set.negotiator->limit_rounds(leaving.last_round(set.id));
  if (set.broken.is_ok() && wiring_.blame.rank() < 0) wiring_.blame.set_rank(leaving.rank, true);
  on_member_gone(set, leaving.rank);
}

// A running operation may wait for a rank that itself waits for the one that has gone. The link to
// the former rank reports nothing, so this does not wait for the links to fail.
void ProcessSets::on_member_gone(ProcessSet& set, int rank) {
  if (set.departed < 0) set.departed = rank;
  const Broken news = wiring_.departures.news_of_first(set);
  if (set.broken.is_ok()) set.broken = Status::without(set.departed, news.why);
  wiring_.agreements.advance(set);
  if (wiring_.executor.is_running_after(set.id, set.negotiator->last_round())) {
    wiring_.termination.break_world(news);
  }
}

std::set<int> ProcessSets::awaited_peers() const {
  std::set<int> awaited;
  for (const auto& [id, set] : sets_) {
    if (set->negotiator == nullptr || (set->pending.empty() && wiring_.executor.is_idle()))
      continue;
    for (const int peer : set->neighbours()) {
      if (!wiring_.departures.contains(peer)) awaited.insert(peer);
    }
  }
  return awaited;
}

const Operation* ProcessSets::longest_under_way() const {
  const Operation* longest = nullptr;
  for (const auto& [id, set] : sets_) {
    const Operation* running = wiring_.executor.find_running(id);
    if (running == nullptr) continue;
    if (longest == nullptr || running->submitted_at < longest->submitted_at) longest = running;
  }
  return longest;
}

bool ProcessSets::awaits(int peer) const {
  return std::ranges::any_of(sets_, [&](const auto& entry) {
    const ProcessSet& set = *entry.second;
    return set.has(peer) && (!set.pending.empty() || wiring_.executor.is_running_after(set.id, 0));
  });
}

void ProcessSets::leave(const std::string& why, const Status& told_here) {
  Leaving leaving;
  leaving.rank = rank_;
  leaving.why = why;
  for (const auto& [id, set] : sets_) {
    if (set->negotiator) leaving.rounds.emplace_back(id, set->negotiator->completed_rounds());
  }
  // Other members may hear of this before they hear that the set was closed.
  leaving.rounds.insert(leaving.rounds.end(), closed_.begin(), closed_.end());
  tell_neighbours(world(), leaving.write());
  for (const auto& [id, set] : sets_) fail_pending(*set, told_here);
  end_closing();
}

void ProcessSets::fail_all(const Status& why) {
  for (const auto& [id, set] : std::map(sets_)) {
    wiring_.executor.cancel_launches(*set, why);
    fail_pending(*set, why);
  }
  end_closing();
}

void ProcessSets::fail_pending(ProcessSet& set, const Status& why) {
  if (set.broken.is_ok()) set.broken = why;
  for (auto& [key, operation] : std::exchange(set.pending, {})) {
    wiring_.tracker.complete(operation, why);
  }
}

void ProcessSets::end_closing() {
  for (auto& [id, operation] : std::exchange(closing_, {})) wiring_.tracker.complete(operation, {});
}

}  // namespace perseus
