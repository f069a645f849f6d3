#include "messages/message_watch.h"

#include <algorithm>
#include <vector>

#include "observe/log.h"

namespace perseus {
namespace {

constexpr size_t kMostLines = 10;

std::chrono::seconds waited_by(const Operation& operation, Clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::seconds>(now - operation.submitted_at);
}

}  // namespace

// One timer serves everything that waits. It ends when nothing does, so an idle engine has none.
void MessageWatch::arm() {
  const std::chrono::seconds step = std::min(report_after_.count() > 0 ? report_after_ : limit_,
                                             limit_.count() > 0 ? limit_ : report_after_);
  if (step.count() > 0) alarm_.set(Clock::now() + step, [this] { check(); });
}

void MessageWatch::check() {
  const auto now = Clock::now();
  std::vector<const Operation*> waiting;
  messenger_.for_each_waiting([&](const Operation& operation) { waiting.push_back(&operation); });
  if (waiting.empty()) return;
  std::ranges::sort(waiting, {}, &Operation::submitted_at);
  const std::chrono::seconds longest = waited_by(*waiting.front(), now);
  if (limit_.count() > 0 && longest >= limit_) {
    return host_.end_stalled_message(describe(*waiting.front(), longest) +
                                     ": longer than PERSEUS_STALL_SHUTDOWN_TIME_SECONDS allows");
  }
  std::erase_if(waiting, [&](const Operation* operation) {
    return waited_by(*operation, now) < report_after_;
  });
  if (report_after_.count() > 0 && !waiting.empty() && now >= reported_at_ + report_after_) {
    reported_at_ = now;
    std::string text = "messages that wait for another rank:";
    for (size_t i = 0; i < std::min(waiting.size(), kMostLines); ++i) {
      text += "\n  " + describe(*waiting[i], waited_by(*waiting[i], now));
    }
    if (waiting.size() > kMostLines) {
      text += "\n  and " + std::to_string(waiting.size() - kMostLines) + " more";
    }
    counters_.stall_warnings.add(waiting.size());
    PERSEUS_LOG(kWarning, text);
  }
  arm();
}

std::string MessageWatch::describe(const Operation& operation, std::chrono::seconds waited) const {
  const auto& [peer, tag, dtype] = operation.message;
  const std::string self = "rank " + std::to_string(rank_);
  const std::string what = tag == MessageEnds::kAny ? "any tag" : "tag " + std::to_string(tag);
  const std::string time = " (" + std::to_string(waited.count()) + " s)";
  const std::string other = "rank " + std::to_string(peer);
  if (operation.description.kind == OperationKind::kSend) {
    return self + " has sent " + what + " to " + other + ", which has not asked for it" + time;
  }
  if (peer == MessageEnds::kAny) return self + " waits for " + what + " from any rank" + time;
  return self + " waits for " + what + " from " + other + ", " + messenger_.last_from(peer) + time;
}

}  // namespace perseus
