#include "bootstrap/rendezvous_world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/rank_names.h"

namespace perseus::rendezvous {
namespace {

std::string format_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

}  // namespace

World::World(const Hello& first, const LaunchedRanks& launched, MetWorlds& met)
    : size_(first.size),
      ranks_(first.ranks),
      launched_(launched),
      met_(met),
      members_(size_),
      callers_(size_),
      contributions_(size_) {}

Status World::join(const Hello& hello, Member* member) {
  if (hello.size != size_) {
    return Status::invalid_argument(name({hello.rank}) + " says that there are " +
                                    std::to_string(hello.size) + " ranks, the others say " +
                                    std::to_string(size_) + "; start all with the same size");
  }
  // Its answer may have been lost on the way, or held back.
  const bool is_same_process = hello.caller == callers_[hello.rank];
  if (Member* other = members_[hello.rank];
      other != nullptr && is_same_process && round_ == 0 && !contributions_[hello.rank]) {
    other->replaced();
  } else if (other != nullptr) {
    return Status::invalid_argument(name({hello.rank}) + " is here already, from " +
                                    other->where() +
                                    "; every process of a job needs a rank of its own");
  }
  members_[hello.rank] = member;
  callers_[hello.rank] = hello.caller;
  return Status::ok();
}

void World::leave(uint32_t rank, const std::string& how) {
  const std::string where = members_[rank]->where();
  members_[rank] = nullptr;
  if (left_.is_ok()) {
    left_ = Status::aborted(name({rank}) + " (" + where + ") " + how);
  }
  if (is_waiting()) fail(left_);
}

bool World::is_empty() const {
  return std::all_of(members_.begin(), members_.end(), [](Member* m) { return m == nullptr; });
}

std::vector<uint32_t> World::members() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (members_[rank] != nullptr) ranks.push_back(launched(rank));
  }
  return ranks;
}

void World::contribute(uint32_t rank, Contribution contribution) {
  if (failure_.is_ok() && (contribution.round != round_ || contributions_[rank])) {
    fail(Status::internal(name({rank}) + " is in round " + std::to_string(contribution.round) +
                          " of the rendezvous, the others in " + std::to_string(round_)));
    return;
  }
  if (!failure_.is_ok()) {
    members_[rank]->tell(encode_error(Answer::kFailed, failure_));
    return;
  }
  contributions_[rank] = std::move(contribution.bytes);
  ++contributed_;
  if (!left_.is_ok()) return fail(left_);
  note_ended();
}

void World::end_round_if_all_are_here() {
  if (is_waiting() && contributed_ == size_) end_round();
}

void World::end_round() {
  std::vector<std::string> all;
  std::vector<int> here;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    here.push_back(static_cast<int>(launched(rank)));
    all.push_back(*std::exchange(contributions_[rank], std::nullopt));
  }
  // Before the ranks hear of it, and tell the launcher.
  met_.add(std::move(here), all);
  contributed_ = 0;
  ++round_;
  const std::string gathered = encode_gathered(all);
  for (Member* member : members_) {
    if (member != nullptr) member->tell(gathered);
  }
}

void World::note_ended() {
  if (!is_waiting()) return;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    const auto ended = launched_.ended.find(launched(rank));
    if (members_[rank] == nullptr && ended != launched_.ended.end()) {
      return fail(Status::aborted(name({rank}) + " " + ended->second +
                                  ", and the ranks cannot meet without it"));
    }
  }
  end_round_if_all_are_here();
}

void World::time_out(double seconds) {
  std::vector<uint32_t> absent;
  std::vector<uint32_t> silent;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (!contributions_[rank]) (members_[rank] ? silent : absent).push_back(rank);
  }
  std::string text = "the " + std::to_string(size_) + " ranks did not all meet within " +
                     format_seconds(seconds) + ": ";
  if (!absent.empty()) text += name(absent) + " never came";
  if (!absent.empty() && !silent.empty()) text += "; ";
  if (!silent.empty()) text += name(silent) + " came and then fell silent";
  fail(Status::timed_out(text + "; raise PERSEUS_START_TIMEOUT if they were only slow to start"));
}

void World::fail(Status why) {
  failure_ = std::move(why);
  const std::string failed = encode_error(Answer::kFailed, failure_);
  for (Member* member : members_) {
    if (member != nullptr) member->tell(failed);
  }
}

std::string World::name(const std::vector<uint32_t>& ranks) const {
  std::vector<int> names;
  std::vector<std::string> hosts;
  for (const uint32_t rank : ranks) {
    names.push_back(static_cast<int>(launched(rank)));
    if (launched_.hosts.empty()) continue;
    const std::string& host = launched_.hosts[launched(rank)];
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return name_ranks(names) + (hosts.empty() ? "" : " on " + enumerate(hosts));
}

}  // namespace perseus::rendezvous
