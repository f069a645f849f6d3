#include "transport/arrival_watch.h"

#include <algorithm>

namespace perseus {

void ArrivalWatch::arm() {
  ticked_ = Clock::now();
  alarm_.set(ticked_ + silence_ / kTicks, [this] { tick(); });
}

void ArrivalWatch::tick() {
  const Clock::time_point now = Clock::now();
  // If this process itself was stopped, what has arrived may not have been read yet.
  const bool has_slept = now - ticked_ > silence_ / 2;
  if (report_silent(now, has_slept)) return;
  const bool is_asking =
      std::ranges::any_of(channels_, [this](const Channel& c) { return is_unanswered(c); });
  const bool awaits = host_.awaits_data_since(turn_ + 1);
  // A healthy job finishes most receives within a tick, and asks nothing.
  const bool asks = !is_asking && host_.awaits_data_since(turn_);
  ++turn_;
  if (is_asking || awaits) arm();
  if (asks) ask();
}

uint64_t ArrivalWatch::ask() {
  const uint64_t number = ++requested_;
  reset_clocks(Clock::now());
  host_.request_marks();
  return number;
}

bool ArrivalWatch::report_silent(Clock::time_point now, bool has_slept) {
  const auto control = std::ranges::find(channels_, 0, &Channel::index);
  if (control == channels_.end() || is_unanswered(*control)) return false;
  for (Channel& channel : channels_) {
    if (!is_unanswered(channel)) continue;
    const uint64_t bytes = host_.bytes_received(channel.index);
    const bool has_moved = bytes != channel.bytes || has_slept;
    channel.bytes = bytes;
    if (has_moved) channel.moved_at = now;
    if (now - channel.moved_at < silence_) continue;
    host_.on_held_back(channel.index, std::chrono::duration_cast<std::chrono::milliseconds>(
                                          now - channel.moved_at));
    return true;
  }
  return false;
}

void ArrivalWatch::marked(int channel, uint64_t number) {
  const auto found = std::ranges::find(channels_, channel, &Channel::index);
  if (found == channels_.end() || number > requested_) return;
  found->marked = std::max(found->marked, number);
  if (channel != 0) return;
  // The peer has written the other marks at the same time, or will once its sockets take them.
  reset_clocks(Clock::now());
}

void ArrivalWatch::reset_clocks(Clock::time_point now) {
  for (Channel& channel : channels_) {
    channel.bytes = host_.bytes_received(channel.index);
    channel.moved_at = now;
  }
}

}  // namespace perseus
