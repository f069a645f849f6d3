#include "watch/stall_judge.h"

#include <algorithm>
#include <utility>

#include "watch/stall_reporter.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;

// When to ask again if another rank is to decide, or the stall seems about to end.
constexpr milliseconds kAskAgain{500};

bool is_join(const Operation& operation) {
  return operation.description.kind == OperationKind::kJoin;
}

// Init has a time-out of its own.
bool is_users(const Operation& operation) {
  const OperationKind kind = operation.description.kind;
  return operation.name_id >= 0 || kind == OperationKind::kJoin ||
         kind == OperationKind::kAddProcessSet || kind == OperationKind::kRemoveProcessSet;
}

uint64_t ms_since(Clock::time_point when) {
  return static_cast<uint64_t>(
      std::max<int64_t>(1, std::chrono::duration_cast<milliseconds>(Clock::now() - when).count()));
}

}  // namespace

StallJudge::StallJudge(EventLoop& loop, milliseconds limit, milliseconds patience, int rank,
                       int size, const LastSubmission& last, StallJudgeHost& host)
    : limit_(limit),
      patience_(patience),
      rank_(rank),
      size_(size),
      last_(last),
      host_(host),
      alarm_(loop),
      out_of_patience_(loop) {}

std::optional<StallJudge::Wait> StallJudge::longest_wait() const {
  std::optional<Wait> longest;
  for (const auto& [id, set] : host_.process_sets()) {
    for (const auto& [key, operation] : set->pending) {
      if (!is_users(*operation)) continue;
      Clock::time_point since = operation->submitted_at;
      // A rank that has joined takes part in all that the others agree on.
      if (is_join(*operation)) since = std::max(since, agreed_at_);
      if (!longest || since < longest->since) longest = Wait{set, key, since};
    }
  }
  return longest;
}

bool StallJudge::has_joined() const {
  return std::ranges::any_of(host_.process_sets(), [](const auto& entry) {
    return std::ranges::any_of(entry.second->pending,
                               [](const auto& pending) { return is_join(*pending.second); });
  });
}

// One timer serves everything that is pending. It ends when nothing is pending any more.
void StallJudge::check() {
  const std::optional<Wait> wait = longest_wait();
  if (!wait) return;
  const auto due = wait->since + limit_;
  if (Clock::now() < due) return check_at(due);
  ask(*wait, limit_);
}

void StallJudge::ask(const Wait& wait, milliseconds limit) {
  if (out_of_patience_.is_set()) return;
  WaitQuery query;
  query.number = ++question_;
  query.limit_ms = static_cast<uint32_t>(limit.count());
  query.process_set = asked_set_ = wait.set->id;
  query.rounds = wait.set->negotiator->completed_rounds();
  query.key = asked_key_ = wait.key;
  stall_ = Stall{rank_, limit, shown(asked_set_, asked_key_), wait.set->ranks, {}};
  stall_.answers.resize(size_);
  unanswered_ = 0;
  const std::vector<std::byte> message = query.write();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || host_.has_left(rank)) {
      stall_.answers[rank] = rank == rank_ ? own_answer() : WaitAnswer();
      stall_.answers[rank]->has_it = true;
    } else {
      ++unanswered_;
      host_.send_to(rank, message);
    }
  }
  out_of_patience_.set(Clock::now() + patience_, [this] { conclude(); });
}

WaitAnswer StallJudge::own_answer() const {
  WaitAnswer answer;
  if (const std::optional<Wait> wait = longest_wait()) {
    answer.waited_ms = ms_since(wait->since);
    answer.waits_for = shown(wait->set->id, wait->key);
    const std::vector<int>& ranks = wait->set->ranks;
    if (wait->set->id != ProcessSet::kWorld) answer.ranks.assign(ranks.begin(), ranks.end());
  }
  if (const Operation* under_way = host_.longest_under_way()) wait_for_data(*under_way, answer);
  answer.waits_for_data_only = answer.waited_ms > 0 && !longest_wait();
  answer.has_joined = has_joined();
  answer.last_submitted = last_.text();
  answer.idle_ms = last_.is_none() ? 0 : ms_since(last_.at());
  return answer;
}

// A rank whose data does not come is held up by others, and by no fault of its own. Operations
// under way ask for no verdict themselves: they may move much data.
void StallJudge::wait_for_data(const Operation& under_way, WaitAnswer& answer) const {
  const std::vector<int> awaited = host_.awaited_for_data();
  const uint64_t waited_ms = ms_since(under_way.submitted_at);
  if (awaited.empty() || waited_ms < answer.waited_ms) return;
  answer.waited_ms = waited_ms;
  answer.waits_for =
      "data of " + shown(under_way.process_set, under_way.key) + " from " + ranks_text(awaited);
  answer.ranks.assign(awaited.begin(), awaited.end());
}

void StallJudge::answer(int from, const WaitQuery& query) {
  WaitAnswer answer = own_answer();
  answer.number = query.number;
  const auto found = host_.process_sets().find(query.process_set);
  if (found != host_.process_sets().end() && found->second->negotiator != nullptr) {
    const ProcessSet& set = *found->second;
    answer.has_it = set.negotiator->has_joined() || set.pending.contains(query.key) ||
                    // The asker is about to learn of that agreement.
                    set.negotiator->has_agreed_since(query.key, query.rounds);
  }
  host_.send_to(from, answer.write());
  // The lowest rank that waits decides, and may not have waited for so long itself.
  if (const std::optional<Wait> wait = longest_wait(); wait && rank_ < from) {
    ask(*wait, milliseconds(query.limit_ms));
  }
}

void StallJudge::on_answer(int from, WaitAnswer answer) {
  if (!out_of_patience_.is_set() || answer.number != question_ || stall_.answers[from]) return;
  stall_.answers[from] = std::move(answer);
  if (--unanswered_ == 0) conclude();
}

void StallJudge::conclude() {
  out_of_patience_.cancel();
  const auto set = host_.process_sets().find(asked_set_);
  const bool waits_still =
      set != host_.process_sets().end() && set->second->pending.contains(asked_key_);
  if (waits_still && decides(stall_)) {
    const auto name_of = [this](int rank) { return host_.name_of(rank); };
    if (const auto verdict = judge(stall_, name_of)) return host_.end_stalled(*verdict);
  }
  if (limit_.count() > 0) check_at(Clock::now() + kAskAgain);
}

}  // namespace perseus
