#include "engine/peer_watch.h"

namespace perseus {

void PeerWatch::arm() {
  ticked_ = Clock::now();
  alarm_.set(ticked_ + std::chrono::nanoseconds(silence_) / kTicks, [this] { tick(); });
}

void PeerWatch::tick() {
  const std::set<int> awaited = host_.awaited_peers();
  const Clock::time_point now = Clock::now();
  // If this process itself was stopped, the others' answers have yet to be read.
  const bool has_slept = now - ticked_ > silence_ / 2;
  std::erase_if(heard_, [&](const auto& entry) { return !awaited.contains(entry.first); });
  for (const int peer : awaited) {
    auto [entry, is_new] = heard_.try_emplace(peer, now);
    if (has_slept) entry->second = now;
    if (now - entry->second >= silence_) return host_.on_silent_peer(peer);
    host_.ask_whether_there(peer);
  }
  if (awaited.empty()) {
    heard_.clear();
  } else {
    arm();
  }
}

}  // namespace perseus
