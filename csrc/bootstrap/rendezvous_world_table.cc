#include "bootstrap/rendezvous_world_table.h"

#include <chrono>
#include <utility>

namespace perseus::rendezvous {

Status WorldTable::check(const Hello& hello) const {
  const std::string sizes = "rank " + std::to_string(hello.rank) + " of " +
                            std::to_string(hello.size) + " in a job of " + std::to_string(size_);
  const bool whole = hello.ranks.empty();
  if (hello.rank >= hello.size ||
      (whole ? hello.size != size_ : hello.ranks.size() != hello.size)) {
    return Status::invalid_argument("the rendezvous has no place for " + sizes +
                                    "; PERSEUS_SIZE must be the same for all ranks");
  }
  for (const uint32_t launched : hello.ranks) {
    if (launched >= size_) {
      return Status::invalid_argument("rank " + std::to_string(launched) +
                                      " was asked for in a job of " + std::to_string(size_));
    }
  }
  return Status::ok();
}

Status WorldTable::join(const Hello& hello, World::Member* member, Handle& world) {
  PERSEUS_RETURN_IF_ERROR(check(hello));
  Key key(hello.ranks, hello.generation, 0);
  if (!hello.is_numbered) {
    TimedOut& before = timed_out_[hello.ranks];
    const uint32_t launched = hello.ranks.empty() ? hello.rank : hello.ranks[hello.rank];
    key = Key(hello.ranks, hello.generation - before.by_rank[launched], before.meetings);
  } else if (const auto failed = failed_.find(key); failed != failed_.end()) {
    return Status::aborted("the others have left this meeting: " + failed->second.message());
  }
  world = entries_.try_emplace(key, hello, launched_, met_).first;
  return world->second.world.join(hello, member);
}

void WorldTable::contribute(Handle world, uint32_t rank, Contribution contribution) {
  Entry& entry = world->second;
  if (!entry.world.is_waiting()) entry.began = Clock::now();
  const Clock::time_point deadline =
      Clock::now() + std::chrono::milliseconds(contribution.time_out_ms);
  entry.world.contribute(rank, std::move(contribution));
  // The time-out of the rank that came first counts: it began to wait first, and all end together.
  if (entry.world.is_waiting() && entry.timer == 0) {
    entry.timer = loop_.call_at(deadline, [this, world] { time_out(world); });
  }
  update_timer(entry);
}

void WorldTable::update_timer(Entry& entry) {
  if (!entry.world.is_waiting() && entry.timer != 0) {
    loop_.cancel_timer(std::exchange(entry.timer, 0));
  }
}

void WorldTable::time_out(Handle world) {
  Entry& entry = world->second;
  entry.timer = 0;
  const std::chrono::duration<double> waited = Clock::now() - entry.began;
  entry.world.time_out(waited.count());
  if (!entry.world.has_met()) {
    TimedOut& timed_out = timed_out_[std::get<Membership>(world->first)];
    timed_out.meetings += 1;
    for (const uint32_t rank : entry.world.members()) timed_out.by_rank[rank] += 1;
  }
}

void WorldTable::leave(Handle world, uint32_t rank, const std::string& how) {
  Entry& entry = world->second;
  entry.world.leave(rank, how);
  update_timer(entry);
  // The entry ends with its last member, so that the same ranks may meet again.
  if (!entry.world.is_empty()) return;
  const Status why = entry.world.why_not_met();
  if (entry.is_numbered && !why.is_ok()) failed_.emplace(world->first, why);
  entries_.erase(world);
}

void WorldTable::add_rank(std::string host) {
  if (launched_.hosts.size() == size_) launched_.hosts.push_back(std::move(host));
  ++size_;
}

void WorldTable::note_ended(uint32_t rank, std::string how) {
  launched_.ended.try_emplace(rank, std::move(how));
  for (auto& [key, entry] : entries_) {
    entry.world.note_ended();
    update_timer(entry);
  }
}

}  // namespace perseus::rendezvous
