// A channel that has outlived its world, until it has proved to belong to the present one. Both
// ends say once which world, ranks and channel it is to be from now on:
//
//   each end -> kRenewal    a frame with a Renewal, which the connection's own keys authenticate,
//   in
//                           order with all that they have authenticated before
//
// An end says it when it needs the link, or when the other end has said it. The channel is handed
// over once an end has said it and has heard the same. If the other end says anything else, or
// nothing in time, the channel is dropped, and the link gets a new connection. Loop thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/alarm.h"
#include "transport/channel.h"
#include "transport/handshake.h"

namespace perseus {

struct Renewal {
  Nonce job{};  // identifies the world
  uint32_t from = 0, to = 0;
  uint16_t index = 0;  // which of the link's channels
  uint16_t total = 0;  // how many channels the link has
  uint32_t reserved = 0;

  // What the other end says.
  Renewal mirrored() const {
    Renewal theirs = *this;
    std::swap(theirs.from, theirs.to);
    return theirs;
  }
};
static_assert(sizeof(Renewal) == 32 && std::is_trivially_copyable_v<Renewal>);

class LinkRenewalOwner {
 public:
  // The renewal has ended, which destroys it. `channel` is null if it has failed; else it has
  // parted from the renewal.
  virtual void on_renewal_ended(int peer, int index, std::unique_ptr<Channel> channel) = 0;

 protected:
  ~LinkRenewalOwner() = default;
};

class LinkRenewal final : private FramePort {
 public:
  // The channel has parted from its link.
  LinkRenewal(EventLoop& loop, std::unique_ptr<Channel> channel, const Renewal& mine,
              std::chrono::milliseconds patience, LinkRenewalOwner& owner);
  ~LinkRenewal();

  // Begins to listen to the other end.
  void start();
  // The link is needed.
  void ask();
  // Returns the channel, which has parted again, if neither end has said anything; else null, and
  // the channel is closed.
  std::unique_ptr<Channel> take_back();

 private:
  bool next(Frame& frame, uint64_t room) override;
  void sent(const Frame& frame) override;
  bool arrived(const FrameHeader& header, const std::byte* data, Lease lease) override;
  std::byte* target(const FrameHeader&) override { return nullptr; }
  bool landed(const FrameHeader&) override { return false; }
  bool awaits_data() const override { return false; }
  uint64_t max_length() const override { return sizeof(Renewal); }
  void failed(const Status& why) override;
  void disturbed(const std::string& how) override;

  void end_if_done();
  // Tells the owner in the loop's next turn, since a call of the channel may be under way.
  void end(bool is_renewed);

  EventLoop& loop_;
  const Renewal mine_;
  const std::chrono::milliseconds patience_;
  LinkRenewalOwner& owner_;
  Alarm deadline_;
  std::unique_ptr<Channel> channel_;
  bool started_ = false, asked_ = false;
  bool handed_ = false, said_ = false, heard_ = false;
  bool ended_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace perseus
