#include "transport/link_port.h"

#include <string>

namespace perseus {

std::byte* FramedLink::Port::target(const FrameHeader& header) {
  if (link_.is_over() || header.kind() != FrameHeader::kData) return nullptr;
  if (!check(header).is_ok()) return nullptr;
  return link_.inbox_.target(header);
}

bool FramedLink::Port::landed(const FrameHeader& header) {
  TrafficCounters::add(link_.environment_.counters.frames_received, 1);
  link_.inbox_.landed(header);
  if (!count_arrived(header)) link_.fail_unmarked(*this);
  return link_.takes_more(*this);
}

bool FramedLink::Port::awaits_data() const {
  // Once either side has begun to leave, the peer's goodbye is still to come.
  return carries_data && !goodbye_received &&
         (!link_.inbox_.is_empty() || link_.state_ == State::kClosing || link_.has_any_goodbye());
}

Status FramedLink::Port::check(const FrameHeader& header) const {
  const uint32_t kind = header.kind();
  const bool known = (header.magic_and_kind & ~0xffu) == FrameHeader::kMagic &&
                     (kind == FrameHeader::kData || kind == FrameHeader::kGoodbye ||
                      (kind == FrameHeader::kControl && carries_control) ||
                      (kind == FrameHeader::kMark && has_marks) ||
                      ((kind == FrameHeader::kMarkRequest || kind == FrameHeader::kBreakOff) &&
                       has_marks && carries_control));
  const bool bounded =
      header.length <= max_length() && header.offset <= header.size &&
      header.length <= header.size - header.offset &&
      (kind != FrameHeader::kControl || header.size <= ControlMessages::kMostBytes);
  // Only an empty message has a frame without bytes; any other such frame would make no progress.
  const bool moves = header.length != 0 || header.size == 0;
  if (known && bounded && moves) return Status::ok();
  return Status::internal("received a malformed frame (kind " + std::to_string(kind) + ", length " +
                          std::to_string(header.length) + ", offset " +
                          std::to_string(header.offset) + " of " + std::to_string(header.size) +
                          ")");
}

void FramedLink::Port::take_goodbye(Frame& frame) {
  goodbye_handed = true;
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kGoodbye;
}

bool FramedLink::Port::next_mark(Frame& frame, uint64_t request) {
  if (!has_marks || (unmarked_out_ < kMarkedBytes && answered_ == request)) return false;
  unmarked_out_ = 0;
  answered_ = request;
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kMark;
  frame.header.number() = request;
  return true;
}

bool FramedLink::Port::count_arrived(const FrameHeader& header) {
  const bool is_possible = !has_marks || unmarked_in_ < kMarkedBytes;
  unmarked_in_ += kMarkedFrame + header.length;
  return is_possible;
}

}  // namespace perseus
