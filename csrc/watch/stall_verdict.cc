#include "watch/stall_verdict.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/rank_names.h"
#include "watch/stall_reporter.h"

namespace perseus {
namespace {

constexpr size_t kMostListed = 10;

// Ranks that wait for the same moment of the same step have come to it at different times.
bool waits(const Stall& stall, int rank) {
  const auto& answer = stall.answers[rank];
  return answer && (answer->has_joined ||
                    (answer->waited_ms > 0 &&
                     answer->waited_ms >= static_cast<uint64_t>(stall.limit.count()) / 2));
}

bool has_waited_too_long(const Stall& stall, int rank) {
  return waits(stall, rank) &&
         stall.answers[rank]->waited_ms >= static_cast<uint64_t>(stall.limit.count());
}

std::string limit_text(const Stall& stall) {
  return std::to_string(stall.limit / std::chrono::seconds(1)) +
         " s (PERSEUS_STALL_SHUTDOWN_TIME_SECONDS)";
}

// A rank that has joined waits for as long as the others work, and these may need it for nothing.
bool may_be_working(const Stall& stall, int rank) {
  const auto& answer = stall.answers[rank];
  return answer && !answer->last_submitted.empty() &&
         answer->idle_ms < static_cast<uint64_t>(stall.limit.count());
}

// The ranks that are part of the stall.
struct Involved {
  std::set<int> waiting;
  std::set<int> idle;  // others wait for them, and they for nobody
  bool may_go_on = false;
};

// Follows who waits for whom, from the ranks that have waited for too long.
Involved find_involved(const Stall& stall) {
  const int size = static_cast<int>(stall.answers.size());
  std::vector<int> everyone(size);
  std::iota(everyone.begin(), everyone.end(), 0);
  Involved found;
  std::vector<int> next;
  for (const int rank : everyone) {
    if (has_waited_too_long(stall, rank)) next.push_back(rank);
  }
  found.waiting.insert(next.begin(), next.end());
  while (!next.empty()) {
    const int rank = next.back();
    next.pop_back();
    const std::vector<int>& of_set = stall.answers[rank]->ranks;
    for (const int other : of_set.empty() ? everyone : of_set) {
      if (other < 0 || other >= size || other == rank) continue;
      if (waits(stall, other)) {
        if (found.waiting.insert(other).second) next.push_back(other);
      } else if (stall.answers[other] && stall.answers[other]->has_it) {
        found.may_go_on = true;  // it has come just now
      } else if (stall.answers[rank]->has_joined && may_be_working(stall, other)) {
        found.may_go_on = true;
      } else {
        found.idle.insert(other);
      }
    }
  }
  return found;
}

// The nearest whole number: a rank that decides may have waited for a moment less than the first.
std::chrono::seconds seconds_of(uint64_t ms) {
  return std::chrono::round<std::chrono::seconds>(
      std::chrono::milliseconds(std::min<uint64_t>(ms, 1ull << 40)));
}

// "'allreduce.x' (10 s): missing on rank 1; ready on rank 0, and rank 1 waits for 'allreduce.y'"
std::string wait_text(const Stall& stall) {
  std::vector<int> missing, ready;
  for (const int rank : stall.ranks) {
    const bool has_it = stall.answers[rank] && stall.answers[rank]->has_it;
    (has_it ? ready : missing).push_back(rank);
  }
  std::string text =
      waiting_text(stall.name, seconds_of(stall.answers[stall.rank]->waited_ms), missing, ready);
  size_t named = 0;
  for (const int rank : missing) {
    if (!waits(stall, rank) || ++named > kMostListed) continue;
    text += ", and rank " + std::to_string(rank) + " waits for " + stall.answers[rank]->waits_for;
  }
  return text;
}

std::string last_act_text(const Stall& stall, int rank) {
  const std::string name = "rank " + std::to_string(rank);
  const auto& answer = stall.answers[rank];
  if (!answer) return name + " has not answered the question what it does";
  if (answer->last_submitted.empty()) return name + " has submitted nothing yet";
  return name + " last submitted " + answer->last_submitted + ", " +
         std::to_string(seconds_of(answer->idle_ms).count()) + " s ago";
}

StallVerdict give_up(const Stall& stall, const std::set<int>& idle,
                     const std::function<std::string(int)>& name_of) {
  StallVerdict verdict;
  verdict.given_up.assign(idle.begin(), idle.end());
  std::vector<std::string> names;
  for (const int rank : idle) names.push_back(name_of(rank));
  verdict.why = "lost " + enumerate(names) + ": " +
                (idle.size() == 1 ? "it takes no part: " : "they take no part: ") +
                wait_text(stall);
  size_t named = 0;
  for (const int rank : idle) {
    if (++named <= kMostListed) verdict.why += "; " + last_act_text(stall, rank);
  }
  verdict.why += "; a rank that others wait for is given up after " + limit_text(stall);
  return verdict;
}

// "the ranks wait for each other: ranks 0, 1 for 'allreduce.a', ranks 2, 3 for 'allreduce.b'"
StallVerdict blame_nobody(const Stall& stall, const std::set<int>& waiting) {
  std::map<std::string, std::vector<int>> sides;
  for (const int rank : waiting) sides[stall.answers[rank]->waits_for].push_back(rank);
  std::string text;
  size_t named = 0;
  for (const auto& [name, ranks] : sides) {
    if (++named > kMostListed) break;
    text += (text.empty() ? "" : ", ") + ranks_text(ranks) + " for " + name;
  }
  if (sides.size() > kMostListed) {
    text += " and others for " + std::to_string(sides.size() - kMostListed) + " more";
  }
  const bool any_data = std::ranges::any_of(
      waiting, [&](int rank) { return stall.answers[rank]->waits_for_data_only; });
  return {{},
          "the ranks wait for each other: " + text +
              "; it cannot be told which of them are at fault, so all operations end and no rank "
              "is given up, after " +
              limit_text(stall) +
              (any_data ? "; data that was sent may not arrive: look at the network between them"
                        : "; every rank must submit the same operations")};
}

}  // namespace

bool decides(const Stall& stall) {
  for (int rank = 0; rank < stall.rank; ++rank) {
    if (waits(stall, rank) && !stall.answers[rank]->waits_for_data_only) return false;
  }
  return true;
}

std::optional<StallVerdict> judge(const Stall& stall,
                                  const std::function<std::string(int)>& name_of) {
  const Involved involved = find_involved(stall);
  if (!involved.idle.empty()) return give_up(stall, involved.idle, name_of);
  if (involved.may_go_on || involved.waiting.size() < 2) return {};
  return blame_nobody(stall, involved.waiting);
}

}  // namespace perseus
