#include "engine/stall_watch.h"

#include <algorithm>

#include "observe/log.h"

namespace perseus {
namespace {

// What a rank needs to answer a question: far more than a busy engine's turn.
constexpr std::chrono::milliseconds kAnswerTime{500};

}  // namespace

StallWatch::StallWatch(EventLoop& loop, const Settings& settings, int rank, Counters& counters,
                       StallWatchHost& host)
    : loop_(loop),
      report_after_(settings.stall_check_time),
      enabled_(!settings.stall_check_disable),
      rank_(rank),
      counters_(counters),
      host_(host),
      reporter_(std::chrono::seconds(settings.stall_check_time),
                std::chrono::seconds(settings.stall_shutdown_time)) {}

StallWatch::~StallWatch() {
  if (armed_) loop_.cancel_timer(timer_);
}

void StallWatch::watch(const ProcessSetPtr& set) {
  if (!enabled_) return;
  sets_[set->id] = set;
  if (!armed_) arm();
}

// One timer stands for all that is pending; it dies with the last of it, so that an idle engine
// has none.
void StallWatch::arm() {
  armed_ = true;
  timer_ = loop_.call_at(Clock::now() + report_after_, [this] { check(); });
}

bool StallWatch::has_pending() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) {
    const ProcessSetPtr set = entry.second.lock();
    return set != nullptr && !set->pending.empty();
  });
}

void StallWatch::check() {
  armed_ = false;
  const auto now = Clock::now();
  for (auto& [id, weak] : sets_) {
    const ProcessSetPtr set = weak.lock();
    if (set == nullptr) continue;
    std::vector<const Operation*> late;
    for (const auto& [key, operation] : set->pending) {
      // Others may compute for as long as they like while this rank has joined.
      const bool may_wait = operation->description.kind == OperationKind::kJoin;
      if (!may_wait && now - operation->submitted_at >= report_after_)
        late.push_back(operation.get());
    }
    if (!late.empty()) ask(*set, late);
  }
  // Suspects whose operation is no longer pending drop out here, and are reported as cleared.
  std::erase_if(suspects_, [&](const auto& entry) {
    const auto set = sets_.contains(entry.first.first) ? sets_[entry.first.first].lock() : nullptr;
    return set == nullptr || !set->pending.contains(entry.first.second);
  });
  if (has_pending() || !suspects_.empty()) {
    armed_ = true;
    timer_ = loop_.call_at(now + kAnswerTime, [this] { report(); });
  } else {
    report();
  }
}

void StallWatch::ask(const ProcessSet& set, const std::vector<const Operation*>& late) {
  StallQuery query;
  query.process_set = set.id;
  for (const Operation* operation : late) {
    query.keys.push_back(operation->key);
    Suspect& suspect = suspects_[{set.id, operation->key}];
    suspect.since = operation->submitted_at;
    // Whoever does not answer is missing too.
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
  answer.last_submitted = last_submitted_;
  const bool has_everything = set != nullptr && set->negotiator->has_joined();
  for (const std::string& key : query.keys) {
    if (has_everything) break;
    if (set == nullptr || !set->pending.contains(key)) answer.missing.push_back(key);
  }
  host_.send_to(from, answer.write());
}

void StallWatch::on_answer(int from, const StallAnswer& answer) {
  for (auto& [which, suspect] : suspects_) {
    if (which.first != answer.process_set) continue;
    const bool is_missing = std::find(answer.missing.begin(), answer.missing.end(), which.second) !=
                            answer.missing.end();
    if (!is_missing) {
      suspect.missing.erase(from);
    } else if (!answer.last_submitted.empty()) {
      suspect.last_submitted[from] = display_name(answer.last_submitted);
    }
  }
}

void StallWatch::report() {
  armed_ = false;
  std::vector<std::string> names;
  names.reserve(suspects_.size());
  std::vector<StallReporter::Waiting> waiting;
  std::map<int, std::string> last_submitted;
  for (const auto& [which, suspect] : suspects_) {
    const auto set = sets_[which.first].lock();
    if (set == nullptr || !set->pending.contains(which.second)) continue;
    names.push_back(display_name(which.second));
    StallReporter::Waiting entry;
    entry.name = names.back();
    entry.since = suspect.since;
    for (int rank : set->ranks) {
      (suspect.missing.contains(rank) ? entry.missing : entry.ready).push_back(rank);
    }
    waiting.push_back(std::move(entry));
    last_submitted.insert(suspect.last_submitted.begin(), suspect.last_submitted.end());
  }
  const StallReporter::Report report = reporter_.check(Clock::now(), waiting);
  if (!report.warning.empty()) {
    std::string text = report.warning;
    for (const auto& [rank, name] : last_submitted) {
      text += "\n  rank " + std::to_string(rank) + " last submitted " + name;
    }
    counters_.stall_warnings.add(report.tensors);
    PERSEUS_LOG(kWarning, text);
  }
  if (!report.cleared.empty()) PERSEUS_LOG(kWarning, report.cleared);

  if (has_pending()) arm();
  if (!report.shut_down.is_ok()) host_.end_stalled(report.shut_down);
}

}  // namespace perseus
