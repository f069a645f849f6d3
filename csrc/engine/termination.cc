#include "engine/termination.h"

#include <set>
#include <utility>

#include "engine/process_sets.h"
#include "engine/submission_queue.h"
#include "messages/messenger.h"
#include "observe/log.h"

namespace perseus {
namespace {

// How long bad news may take to leave.
constexpr std::chrono::milliseconds kNewsTime{100};
// How long it usually takes to make links.
constexpr std::chrono::milliseconds kConnectTime{500};
// How long shutdown waits for what has been agreed on to end, and then for other ranks to take what
// was sent to them.
constexpr std::chrono::milliseconds kLinger{2000};

Status shut_down_status() {
  return Status::aborted(
      "Perseus has been shut down on this rank while the operation was under way, or before it was "
      "submitted; call init() again before any other operation");
}

}  // namespace

Status Termination::reason() const {
  return shutting_down_ && broken_.is_ok() ? shut_down_status() : broken_;
}

void Termination::break_world(const Broken& broken) {
  if (!broken_.is_ok()) return;
  broken_ = Status::aborted(broken.why);
  if (!broken.has_left) PERSEUS_LOG(kError, broken.why);
  blame_.set_rank(broken.rank, broken.has_left, broken.others_lost);
  blame_.tell_launcher();
  queue_.close(broken_);
  end_operations(broken);
}

Broken Termination::failed_here(const Status& why) const {
  const Topology& topology = mesh_.topology();
  return {topology.rank, topology.name(topology.rank) + " cannot go on: " + why.message()};
}

void Termination::end_operations(const Broken& news) {
  sets_.tell_neighbours(sets_.world(), news.write());
  // The links close only when the news has had time to leave. Otherwise ranks that have not heard
  // it would take this rank for the one that died.
  loop_.call_at(Clock::now() + kNewsTime, [this] {
    mesh_.fail_all(broken_);
    gpus_.abandon(broken_);
  });
  executor_.cancel_waiting(broken_);
  messenger_.end_all(broken_);
  sets_.fail_all(broken_);
  std::set<int> lost(news.others_lost.begin(), news.others_lost.end());
  lost.insert(news.rank);
  mesh_.cut_all(broken_, lost);
}

void Termination::begin_shutdown(const std::string& why) {
  shutting_down_ = true;
  blame_.begin_shutdown();
  departures_.set_own_reason(why);
  queue_.close(shut_down_status());
  if (broken_.is_ok()) {
    sets_.leave(why, shut_down_status());
    messenger_.end_all(shut_down_status());
    loop_.call_at(Clock::now() + kLinger, [this] { stop_taking_part(); });
  }
  close_when_idle();
}

void Termination::break_at_start(const Status& why) {
  // The links of a world that has just met are still being made.
  const auto connected = Clock::now() + kConnectTime;
  loop_.call_at(connected, [this, why] { break_world(failed_here(why)); });
  loop_.call_at(connected + 2 * kNewsTime, [this] { begin_shutdown(""); });
}

// Something that had been agreed on when shutdown began has not ended since.
void Termination::stop_taking_part() {
  if (closed_ || !broken_.is_ok()) return;
  broken_ = shut_down_status();
  end_operations(departures_.news_of(mesh_.topology().rank));
}

void Termination::close_when_idle() {
  if (!shutting_down_ || closed_ || !executor_.is_idle()) return;
  if (!messenger_.is_idle()) return;
  closed_ = true;
  mesh_.close(kLinger, [this] { loop_.stop(); });
}

Status Termination::shard_failed(const Status& status) {
  const int peer = status.peer();
  if (peer >= 0 && mesh_.has_left(peer)) {
    break_world(departures_.news_of(peer));
  } else if (peer >= 0) {
    break_world(Broken{peer, status.message()});
  } else if (peer == Status::kNobody) {
    break_world(Broken{-1, status.message()});
  } else {
    Broken news = failed_here(status);
    // All ranks wait for what does not end, and this one is only the first to say so.
    if (status.code() == StatusCode::kTimedOut) news.rank = -1;
    break_world(news);
  }
  return status.code() == StatusCode::kAborted ? broken_ : status;
}

}  // namespace perseus
