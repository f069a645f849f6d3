#include "watch/peer_watch.h"

#include <algorithm>

namespace perseus {

void PeerWatch::arm(Clock::time_point when) {
  ticked_ = Clock::now();
  alarm_.set(when, [this] { tick(); });
}

void PeerWatch::tick() {
  const std::set<int> awaited = host_.awaited_peers();
  const Clock::time_point now = Clock::now();
  // If this process itself was stopped, the others' answers may not have been read yet.
  const bool has_slept = now - ticked_ > silence_ / 2;
  std::erase_if(heard_, [&](const auto& entry) { return !awaited.contains(entry.first); });
  Clock::time_point next = now + silence_ / kTicks;
  for (const int peer : awaited) {
    auto [entry, is_new] = heard_.try_emplace(peer, now);
    if (has_slept) entry->second = now;
    if (now - entry->second >= silence_) {
      return host_.on_silent_peer(
          peer, std::chrono::duration_cast<std::chrono::milliseconds>(now - entry->second));
    }
    host_.ping(peer);
    next = std::min(next, entry->second + silence_);
  }
  if (awaited.empty()) {
    heard_.clear();
  } else {
    arm(next);
  }
}

}  // namespace perseus
