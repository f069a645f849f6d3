// How a link parts from its peer: it leaves each connection between two frames, with nothing of
// this world under way, so that the next world can have it.
#include <algorithm>
#include <utility>

#include "transport/framed_link.h"
#include "transport/link_port.h"

namespace perseus {

bool FramedLink::can_part() const {
  return environment_.keeps_connections && is_connected() && !is_over() &&
         std::ranges::all_of(ports_, [](auto& port) { return port->channel->can_move(); });
}

bool FramedLink::takes_more(const Port& port) const {
  // What follows a goodbye is for the next world.
  if (port.goodbye_received && environment_.keeps_connections) return false;
  return !is_over() || parting_ != Parting::kNo;
}

void FramedLink::cut(const Status& why) {
  // A link that is closing has begun to say goodbye.
  const Parting parting = state_ == State::kClosing ? Parting::kUnderWay : Parting::kCut;
  if (can_part()) end(State::kFailed, why, parting);
}

void FramedLink::say_goodbye() {
  parting_ = Parting::kUnderWay;
  for (auto& port : ports_) {
    if (parting_ == Parting::kUnderWay && !port->goodbye_handed) port->channel->kick();
  }
  finish_parting_if_done();
}

bool FramedLink::next_while_parting(Port& port, Frame& frame, uint64_t room) {
  if (port.goodbye_handed) return false;
  room = std::min(room, environment_.frame_bytes);
  if (port.carries_control && controls_.next(frame, room)) return true;
  if (parting_ != Parting::kUnderWay) return false;
  port.take_goodbye(frame);
  return true;
}

void FramedLink::sent_while_parting(Port& port, const Frame& frame) {
  TrafficCounters::add(environment_.counters.frames_sent, 1);
  if (frame.header.kind() == FrameHeader::kControl) controls_.sent(frame);
  if (frame.header.kind() != FrameHeader::kGoodbye) return;
  port.goodbye_sent = true;
  finish_parting_if_done();
}

bool FramedLink::arrived_while_parting(Port& port, const FrameHeader& header) {
  if (!port.check(header).is_ok() || header.kind() == FrameHeader::kBreakOff) {
    stop_parting();
    return false;
  }
  if (header.kind() != FrameHeader::kGoodbye) return true;
  port.goodbye_received = true;
  // The peer has left, so there is nothing to wait for.
  parting_ == Parting::kCut ? say_goodbye() : finish_parting_if_done();
  return false;
}

void FramedLink::finish_parting_if_done() {
  const bool done = std::ranges::all_of(
      ports_, [](auto& port) { return port->goodbye_sent && port->goodbye_received; });
  if (!done || parting_ != Parting::kUnderWay) return;
  parting_ = Parting::kDone;
  environment_.observer.link_closed(peer());
}

void FramedLink::stop_parting() {
  if (std::exchange(parting_, Parting::kNo) == Parting::kNo) return;
  for (auto& port : ports_) port->channel->close();
  controls_.clear();
  environment_.observer.link_closed(peer());
}

std::vector<std::unique_ptr<Channel>> FramedLink::take_channels() {
  std::vector<std::unique_ptr<Channel>> channels;
  if (parting_ != Parting::kDone) return channels;
  // The frames that it holds may lie in memory of a channel.
  inbox_.clear(end_status_);
  for (auto& port : ports_) channels.push_back(std::move(port->channel));
  parting_ = Parting::kNo;
  const auto parts = [](auto& channel) { return channel->part(); };
  if (!std::ranges::all_of(channels, parts)) channels.clear();
  return channels;
}

}  // namespace perseus
