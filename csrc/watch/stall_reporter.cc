#include "watch/stall_reporter.h"

#include <algorithm>

namespace perseus {
namespace {

// A job that hangs has often submitted a whole model. The oldest tensors are enough to see why.
constexpr size_t kMostNamed = 10;

using Seconds = std::chrono::seconds;

std::string seconds_text(std::chrono::steady_clock::duration time) {
  return std::to_string(std::chrono::duration_cast<Seconds>(time).count()) + " s";
}

std::string count_text(size_t tensors) {
  return std::to_string(tensors) + (tensors == 1 ? " tensor" : " tensors");
}

std::string warning_text(StallReporter::TimePoint now,
                         std::span<const StallReporter::Waiting* const> stalled) {
  const bool one = stalled.size() == 1;
  std::string text = count_text(stalled.size()) + (one ? " waits" : " wait") +
                     " for ranks that have not submitted " + (one ? "it" : "them") + ", for " +
                     seconds_text(now - stalled.front()->since) + " by now:";
  for (size_t i = 0; i < std::min(stalled.size(), kMostNamed); ++i) {
    const StallReporter::Waiting& tensor = *stalled[i];
    text +=
        "\n  " + waiting_text(tensor.name, std::chrono::duration_cast<Seconds>(now - tensor.since),
                              tensor.missing, tensor.ready);
  }
  if (stalled.size() > kMostNamed) {
    text += "\n  and " + std::to_string(stalled.size() - kMostNamed) + " more";
  }
  text +=
      "\nEvery rank must submit every tensor. A rank that is missing is slow, stuck elsewhere, or "
      "has taken another branch than the others.";
  return text;
}

}  // namespace

std::string rank_list(std::span<const int> ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    // Two in a row read better as "1, 2".
    if (last == first + 1) last = first;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[first]);
    if (last > first) text += "-" + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

std::string ranks_text(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks);
}

std::string waiting_text(std::string_view name, Seconds waited, std::span<const int> missing,
                         std::span<const int> ready) {
  std::string text = std::string(name) + " (" + seconds_text(waited) + ")";
  if (!missing.empty()) text += ": missing on " + ranks_text(missing);
  if (!ready.empty()) {
    text += (missing.empty() ? ": ready on " : "; ready on ") + ranks_text(ready);
  }
  return text;
}

StallReporter::StallReporter(Seconds warn_after) : warn_after_(warn_after) {}

StallReporter::TimePoint StallReporter::next_warning(const Waiting& tensor) const {
  auto found = reported_.find(tensor.name);
  const bool same_wait = found != reported_.end() && found->second.since == tensor.since;
  return (same_wait ? found->second.last : tensor.since) + warn_after_;
}

StallReporter::Report StallReporter::check(TimePoint now, std::span<const Waiting> waiting) {
  std::vector<const Waiting*> oldest_first;
  for (const Waiting& tensor : waiting) oldest_first.push_back(&tensor);
  std::sort(oldest_first.begin(), oldest_first.end(), [](const Waiting* a, const Waiting* b) {
    return a->since != b->since ? a->since < b->since : a->name < b->name;
  });

  Report report;
  report.cleared = clear(now, waiting);
  const bool due = std::any_of(oldest_first.begin(), oldest_first.end(),
                               [&](const Waiting* tensor) { return now >= next_warning(*tensor); });
  // Once one is due, those that will be soon are reported with it: a step's tensors are submitted
  // within moments of each other, and belong in one report.
  std::vector<const Waiting*> told;
  for (const Waiting* tensor : oldest_first) {
    if (!due || now - tensor->since < std::chrono::milliseconds(warn_after_) / 2) continue;
    told.push_back(tensor);
    reported_[std::string(tensor->name)] = {tensor->since, now};
  }
  if (due) {
    report.warning = warning_text(now, told);
    report.tensors = told.size();
  }
  return report;
}

std::string StallReporter::clear(TimePoint now, std::span<const Waiting> waiting) {
  size_t cleared = 0;
  std::string names;
  for (auto entry = reported_.begin(); entry != reported_.end();) {
    const bool waits_still =
        std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& tensor) {
          return tensor.name == entry->first && tensor.since == entry->second.since;
        });
    if (waits_still) {
      ++entry;
      continue;
    }
    if (++cleared <= kMostNamed) {
      names += (cleared == 1 ? " " : ", ") + entry->first + " (after " +
               seconds_text(now - entry->second.since) + ")";
    }
    entry = reported_.erase(entry);
  }
  if (cleared == 0) return "";
  if (cleared > kMostNamed) names += " and " + std::to_string(cleared - kMostNamed) + " more";
  return "no longer stalled:" + names;
}

}  // namespace perseus
