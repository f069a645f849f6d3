#include "transport/link_renewal.h"

#include <cstring>
#include <string>
#include <utility>

namespace perseus {

LinkRenewal::LinkRenewal(EventLoop& loop, std::unique_ptr<Channel> channel, const Renewal& mine,
                         std::chrono::milliseconds patience, LinkRenewalOwner& owner)
    : loop_(loop),
      mine_(mine),
      patience_(patience),
      owner_(owner),
      deadline_(loop),
      channel_(std::move(channel)) {
  channel_->move_to(loop_, *this);
}

LinkRenewal::~LinkRenewal() = default;

void LinkRenewal::start() {
  started_ = true;
  channel_->start();
  if (asked_ && !ended_) channel_->kick();
}

void LinkRenewal::ask() {
  if (std::exchange(asked_, true) || ended_) return;
  if (!heard_) deadline_.set(Clock::now() + patience_, [this] { end(false); });
  if (started_) channel_->kick();
}

std::unique_ptr<Channel> LinkRenewal::take_back() {
  const bool is_untouched = !asked_ && !heard_ && !ended_;
  return is_untouched && channel_->part() ? std::move(channel_) : nullptr;
}

bool LinkRenewal::next(Frame& frame, uint64_t) {
  if (!asked_ || ended_ || std::exchange(handed_, true)) return false;
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kRenewal;
  frame.header.length = sizeof mine_;
  frame.header.size = sizeof mine_;
  frame.data = reinterpret_cast<const std::byte*>(&mine_);
  return true;
}

void LinkRenewal::sent(const Frame&) {
  said_ = true;
  end_if_done();
}

bool LinkRenewal::arrived(const FrameHeader& header, const std::byte* data, Lease) {
  if (ended_) return false;
  const Renewal expected = mine_.mirrored();
  const bool is_renewal = header.magic_and_kind == (FrameHeader::kMagic | FrameHeader::kRenewal) &&
                          header.length == sizeof expected && header.size == sizeof expected &&
                          header.offset == 0;
  // Also if it is of another world, which one of the two has never been in.
  if (!is_renewal || std::memcmp(data, &expected, sizeof expected) != 0) {
    end(false);
    return false;
  }
  heard_ = true;
  deadline_.cancel();
  ask();
  end_if_done();
  return false;  // what follows is for the link
}

void LinkRenewal::failed(const Status&) { end(false); }
void LinkRenewal::disturbed(const std::string&) { end(false); }

void LinkRenewal::end_if_done() {
  if (said_ && heard_) end(true);
}

void LinkRenewal::end(bool is_renewed) {
  if (std::exchange(ended_, true)) return;
  deadline_.cancel();
  if (!is_renewed) channel_->close();
  loop_.post([this, is_renewed, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    const bool has_parted = is_renewed && channel_->part();
    std::unique_ptr<Channel> channel = has_parted ? std::move(channel_) : nullptr;
    const int peer = static_cast<int>(mine_.to), index = mine_.index;
    owner_.on_renewal_ended(peer, index, std::move(channel));  // destroys this
  });
}

}  // namespace perseus
