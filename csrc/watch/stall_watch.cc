#include "watch/stall_watch.h"

#include <algorithm>
#include <utility>

#include "base/settings.h"
#include "observe/log.h"

namespace perseus {
namespace {

// How long to wait for answers: far longer than a busy engine takes to get to a question.
constexpr std::chrono::milliseconds kAnswerTime{500};

}  // namespace

StallWatch::StallWatch(EventLoop& loop, const Settings& settings, int rank,
                       const LastSubmission& last, Counters& counters, StallWatchHost& host)
    : report_after_(std::chrono::seconds(settings.stall_check_time)),
      enabled_(!settings.stall_check_disable),
      rank_(rank),
      last_(last),
      counters_(counters),
      host_(host),
      reporter_(std::chrono::seconds(settings.stall_check_time)),
      alarm_(loop) {}

void StallWatch::watch(const ProcessSetPtr& set) {
  if (!enabled_) return;
  std::weak_ptr<ProcessSet>& known = sets_[set->id];
  // A later set may have the id of one that has been closed. Assigning would count references for
  // each operation.
  if (known.owner_before(set) || set.owner_before(known)) known = set;
  if (!alarm_.is_set()) arm();
}

// One timer serves everything that is pending. It ends when nothing is pending any more, so an idle
// engine has no timer.
void StallWatch::arm() {
  auto due = Clock::now() + report_after_;
  for (const auto& [id, weak] : sets_) {
    const ProcessSetPtr set = weak.lock();
    if (set == nullptr) continue;
    for (const auto& [key, operation] : set->pending) {
      // An operation that was late at the last check is looked at again after another report time.
      const auto its = operation->submitted_at + report_after_;
      due = std::min(due, its > checked_at_ ? its : checked_at_ + report_after_);
    }
  }
  alarm_.set(due, [this] { check(); });
}

bool StallWatch::has_pending() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) {
    const ProcessSetPtr set = entry.second.lock();
    return set != nullptr && !set->pending.empty();
  });
}

void StallWatch::check() {
  const auto now = checked_at_ = Clock::now();
  bool has_asked = false;
  for (auto& [id, weak] : sets_) {
    const ProcessSetPtr set = weak.lock();
    if (set == nullptr) continue;
    // Once one is late, those that will be soon are asked about with it.
    std::vector<const Operation*> late;
    bool any_late = false;
    for (const auto& [key, operation] : set->pending) {
      // A rank that has joined may wait for as long as the others compute.
      if (operation->description.kind == OperationKind::kJoin) continue;
      const auto waited = now - operation->submitted_at;
      any_late |= waited >= report_after_;
      if (waited >= report_after_ / 2) late.push_back(operation.get());
    }
    // Operations that were taken up together have one time.
    std::ranges::sort(late, {}, [](const Operation* operation) {
      return std::pair(operation->submitted_at, operation->handle);
    });
    if (any_late) ask(*set, late);
    has_asked |= any_late;
  }
  drop_settled();
  if (has_asked) {
    alarm_.set(now + kAnswerTime, [this] { report(); });
  } else {
    report();
  }
}

void StallWatch::ask(const ProcessSet& set, const std::vector<const Operation*>& late) {
  StallQuery query;
  query.process_set = set.id;
  query.rounds = set.negotiator->completed_rounds();
  for (const Operation* operation : late) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::seconds>(checked_at_ - operation->submitted_at);
    query.late.push_back({operation->key, static_cast<uint32_t>(waited.count())});
    Suspect& suspect = suspects_[{set.id, operation->key}];
    suspect.since = operation->submitted_at;
    // A rank that does not answer counts as missing too.
    suspect.missing = {set.ranks.begin(), set.ranks.end()};
    suspect.missing.erase(rank_);
    suspect.last_submitted.clear();
  }
  const std::vector<std::byte> message = query.write();
  for (int rank : set.ranks) {
    if (rank != rank_) host_.send_to(rank, message);
  }
}

void StallWatch::answer(int from, const StallQuery& query, const ProcessSet* set) {
  StallAnswer answer;
  answer.process_set = query.process_set;
  answer.last_submitted = last_.text();
  const std::vector<int> awaited = host_.awaited_for_data();
  if (!last_.is_none() && !awaited.empty()) {
    answer.last_submitted += ", and waits for data from " + ranks_text(awaited);
  }
  const bool has_everything = set != nullptr && set->negotiator->has_joined();
  std::vector<StallQuery::Late> missing;
  for (const StallQuery::Late& late : query.late) {
    if (has_everything) break;
    const std::string& key = late.key;
    const bool is_there = set != nullptr && (set->pending.contains(key) ||
                                             // The asker is about to learn of that agreement.
                                             set->negotiator->has_agreed_since(key, query.rounds));
    if (is_there) continue;
    missing.push_back(late);
    answer.missing.push_back(key);
  }
  host_.send_to(from, answer.write());
  if (!missing.empty()) log_waiting_ranks(from, query.process_set, missing);
}

// All ranks that wait ask at about the same time; one line is enough.
void StallWatch::log_waiting_ranks(int asker, int32_t set,
                                   std::span<const StallQuery::Late> missing) {
  const auto now = Clock::now();
  if (!enabled_ || now < logged_waiting_at_ + report_after_ / 2) return;
  logged_waiting_at_ = now;
  std::string text = "this rank has not submitted " + shown(set, missing.front().key);
  if (missing.size() > 1) text += " and " + std::to_string(missing.size() - 1) + " more";
  text += ", for which rank " + std::to_string(asker) + " (and perhaps others) has waited for " +
          std::to_string(missing.front().waited_seconds) + " s";
  text += last_.is_none() ? "; it has submitted nothing yet"
                          : "; its last submission is " + last_.text();
  PERSEUS_LOG(kWarning, text);
}

void StallWatch::on_answer(int from, const StallAnswer& answer) {
  for (auto& [which, suspect] : suspects_) {
    if (which.first != answer.process_set) continue;
    const bool is_missing = std::find(answer.missing.begin(), answer.missing.end(), which.second) !=
                            answer.missing.end();
    if (!is_missing) {
      suspect.missing.erase(from);
    } else {
      suspect.last_submitted[from] = answer.last_submitted;
    }
  }
}

void StallWatch::drop_settled() {
  std::erase_if(suspects_, [&](const auto& entry) {
    const auto set = sets_.contains(entry.first.first) ? sets_[entry.first.first].lock() : nullptr;
    return set == nullptr || !set->pending.contains(entry.first.second);
  });
}

std::vector<StallReporter::Waiting> StallWatch::waiting(std::vector<std::string>& names) const {
  std::vector<StallReporter::Waiting> waiting;
  names.reserve(suspects_.size());
  for (const auto& [which, suspect] : suspects_) {
    const auto set = sets_.at(which.first).lock();
    if (set == nullptr) continue;
    names.push_back(shown(which.first, which.second));
    StallReporter::Waiting entry;
    entry.name = names.back();
    entry.since = suspect.since;
    for (int rank : set->ranks) {
      (suspect.missing.contains(rank) ? entry.missing : entry.ready).push_back(rank);
    }
    waiting.push_back(std::move(entry));
  }
  return waiting;
}

void StallWatch::look_for_cleared() {
  drop_settled();
  std::vector<std::string> names;
  const std::string cleared = reporter_.clear(Clock::now(), waiting(names));
  if (!cleared.empty()) PERSEUS_LOG(kWarning, cleared);
}

void StallWatch::report() {
  drop_settled();
  std::vector<std::string> names;
  const std::vector<StallReporter::Waiting> late = waiting(names);
  std::map<int, std::string> last_submitted;
  for (const auto& [which, suspect] : suspects_) {
    last_submitted.insert(suspect.last_submitted.begin(), suspect.last_submitted.end());
  }
  const StallReporter::Report report = reporter_.check(Clock::now(), late);
  if (!report.warning.empty()) {
    std::string text = report.warning;
    for (const auto& [rank, name] : last_submitted) {
      text += "\n  rank " + std::to_string(rank);
      text += name.empty() ? " has submitted nothing yet" : " last submitted " + name;
    }
    counters_.stall_warnings.add(report.tensors);
    PERSEUS_LOG(kWarning, text);
  }
  if (!report.cleared.empty()) PERSEUS_LOG(kWarning, report.cleared);

  if (has_pending()) arm();
}

}  // namespace perseus
