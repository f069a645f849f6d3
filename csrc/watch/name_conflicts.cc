#include "watch/name_conflicts.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace perseus {
namespace {

// How long a non-member call is kept, as a multiple of the time after which an operation is
// overdue.
constexpr int kPeriodsToKeepCalls = 4;

// Adapters number the operations that the user has not named, each kind by itself. So equal numbers
// of two kinds mean nothing.
bool is_named(std::string_view users_name) { return !users_name.starts_with("noname."); }

// Init has a time-out of its own, and a rank that has joined may wait for as long as it takes.
bool is_watched(const Operation& operation) {
  const OperationKind kind = operation.description.kind;
  const bool is_users = operation.name_id >= 0 || kind == OperationKind::kAddProcessSet ||
                        kind == OperationKind::kRemoveProcessSet;
  return is_users && kind != OperationKind::kJoin && is_named(users_name(operation.key));
}

}  // namespace

NameConflicts::NameConflicts(EventLoop& loop, std::chrono::seconds overdue_after,
                             NameConflictHost& host)
    : loop_(loop), overdue_after_(overdue_after), host_(host), alarm_(loop) {}

void NameConflicts::arm(std::chrono::nanoseconds from_now) {
  alarm_.set(Clock::now() + from_now, [this] { check(); });
}

// One timer serves everything that is pending. It ends when nothing is pending any more.
void NameConflicts::check() {
  const bool any_pending = find_overdue();
  std::erase_if(non_member_calls_,
                [](const auto& entry) { return entry.second.until < Clock::now(); });
  const bool took_part =
      std::exchange(takes_part_always_, !overdue_.empty() || !non_member_calls_.empty());
  if (takes_part_always_ || took_part) {
    for (const auto& [id, set] : host_.process_sets()) {
      if (set->negotiator) set->negotiator->take_part_always(takes_part_always_);
    }
    refuse_overdue_elsewhere();
    advance_all();
  }
  if (any_pending || takes_part_always_) arm(overdue_after_ / 2);
}

bool NameConflicts::find_overdue() {
  bool any_pending = false;
  std::map<std::string_view, std::vector<const Operation*>> by_name;
  for (const auto& [id, set] : host_.process_sets()) {
    for (const auto& [key, operation] : set->pending) {
      any_pending = true;
      if (is_watched(*operation)) by_name[users_name(key)].push_back(operation.get());
    }
  }
  std::set<OperationId> overdue;
  const auto latest = Clock::now() - overdue_after_;
  for (const auto& [name, operations] : by_name) {
    const Operation& operation = *operations.front();
    if (operations.size() > 1 || operation.submitted_at > latest) continue;
    OperationId id{operation.process_set, operation.key};
    if (!overdue_.contains(id)) {
      host_.process_sets().at(id.first)->negotiator->mark_overdue(id.second);
    }
    overdue.insert(std::move(id));
  }
  overdue_ = std::move(overdue);
  return any_pending;
}

void NameConflicts::on_agreement(const ProcessSet& set, const Agreement& agreement) {
  for (const Agreement::Failure& failure : agreement.failures) {
    const bool has_failed_here = !failure.is_refused_here && set.pending.contains(failure.key);
    if (has_failed_here && !failure.instead_key.empty()) {
      refuse_for({failure.instead_set, failure.instead_key}, {set.id, failure.key});
      loop_.post([this] { advance_all(); });
    }
    forget({set.id, failure.key});
  }
  if (!overdue_.empty() || !overdue_elsewhere_.empty()) {
    for (const Agreement::Ready& ready : agreement.ready) forget({set.id, ready.key()});
  }
  for (const Agreement::Overdue& overdue : agreement.overdue) {
    if (!set.pending.contains(overdue.key))
      overdue_elsewhere_[{set.id, overdue.key}] = overdue.waiting;
  }
  if (!agreement.overdue.empty()) {
    refuse_overdue_elsewhere();
    loop_.post([this] { advance_all(); });
  }
}

void NameConflicts::add_non_member_call(const std::string& key, const std::string& reason) {
  if (!is_named(users_name(key))) return;
  non_member_calls_[std::string(users_name(key))] = {
      Clock::now() + kPeriodsToKeepCalls * overdue_after_, reason};
  alarm_.cancel();
  check();
}

void NameConflicts::refuse_overdue_elsewhere() {
  for (const auto& [theirs, waiting] : overdue_elsewhere_) {
    const std::string name(users_name(theirs.second));
    for (const OperationId& ours : overdue_) {
      if (users_name(ours.second) == name && waits_for_one_of(ours, waiting)) {
        refuse_for(theirs, ours);
      }
    }
    const auto call = non_member_calls_.find(name);
    if (call != non_member_calls_.end() && refuse(theirs, {call->second.reason, -1, ""})) {
      non_member_calls_.erase(call);
    }
  }
}

bool NameConflicts::waits_for_one_of(const OperationId& ours,
                                     const std::vector<int32_t>& ranks) const {
  const ProcessSet& set = *host_.process_sets().at(ours.first);
  return std::any_of(ranks.begin(), ranks.end(), [&](int32_t rank) { return set.has(rank); });
}

void NameConflicts::refuse_for(const OperationId& theirs, const OperationId& ours) {
  if (refused_.contains({ours, theirs})) return;
  const auto describe = [&](const OperationId& id) {
    const std::string text = "'" + display_name(id.second) + "'";
    return theirs.first == ours.first ? text : text + " in process set " + std::to_string(id.first);
  };
  if (refuse(theirs,
             {"it waits for " + describe(ours) + " instead of " + describe(theirs) +
                  "; every rank must submit a name for the same operation in the same process set",
              ours.first, ours.second})) {
    refused_.emplace(ours, theirs);
  }
}

// Returns whether it could be refused.
bool NameConflicts::refuse(const OperationId& theirs, Refusal refusal) {
  const auto& sets = host_.process_sets();
  const auto set = sets.find(theirs.first);
  if (set == sets.end() || set->second->negotiator == nullptr ||
      set->second->pending.contains(theirs.second)) {
    return false;
  }
  set->second->negotiator->refuse(theirs.second, std::move(refusal));
  return true;
}

void NameConflicts::forget(const OperationId& id) {
  overdue_.erase(id);
  overdue_elsewhere_.erase(id);
  std::erase_if(refused_, [&](const auto& entry) { return entry.first == id; });
}

void NameConflicts::advance_all() {
  // A copy, since agreements may open and close sets.
  for (const auto& [id, set] : std::map(host_.process_sets())) host_.advance(*set);
}

}  // namespace perseus
