// Moves frames through two rings in memory that two processes of one host share, and payloads
// through their outboxes. The memory has no name: it is passed as file descriptors over an
// authenticated Unix socket, together with each side's doorbell, so nothing is left behind however
// a process ends. The socket stays open, and its end tells at once that the peer is gone. Loop
// thread.
//
// To open the channel, the initiator sends its outbox, its doorbell and the rings, and the acceptor
// answers with its outbox and doorbell.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/event_loop.h"
#include "base/file_descriptor.h"
#include "transport/channel.h"
#include "transport/shm/outbox.h"
#include "transport/shm/ring.h"
#include "transport/shm/shared_memory.h"

namespace perseus {

class ShmChannel final : public Channel, private FdHandler, private Poller {
 public:
  // `socket` is connected and authenticated. `outbox` is shared by the rank's channels.
  ShmChannel(EventLoop& loop, Outbox& outbox, FileDescriptor socket, FramePort& port,
             bool is_initiator);
  ~ShmChannel() override;

  Kind kind() const override { return Kind::kShm; }
  void start() override;
  void kick() override { fill(); }
  void close() override;
  SharedBoard peer_board() const override {
    return state_ == State::kOpen ? peer_outbox_.board() : SharedBoard();
  }
  bool can_move() const override { return state_ == State::kOpen; }
  bool part() override;
  void move_to(EventLoop& loop, FramePort& port) override;

 private:
  enum class State { kOpening, kOpen, kClosed };

  void fail_and_tell_peer(const Status& why);
  Status open_outbox();
  Status offer_memory();
  void receive_descriptors();
  Status accept_memory(FileDescriptor rings);
  void attach_rings();
  void ring_peer();

  void on_ready(uint32_t epoll_events) override;
  bool poll() override;
  bool prepare_to_sleep() override;
  void awake() override;

  bool drain(int most);  // returns whether any frame arrived
  bool fill();           // returns whether any frame was sent

  EventLoop* loop_;  // null after part()
  Outbox& outbox_;
  FramePort* port_;
  const bool is_initiator_;
  State state_ = State::kOpening;
  FileDescriptor socket_;
  FileDescriptor peer_doorbell_;
  // Kept until destruction, since a caller up the stack or the holder of a lease may be reading it.
  SharedMemory memory_;
  OutboxReader peer_outbox_;
  RingProducer out_;
  RingConsumer in_;
  bool has_outbox_ = false;
  bool hands_over_ = true;  // what arrives
  bool blocked_ = false;    // there may be frames to send, and no room
  bool has_more_ = false;   // there may be frames to send, and room
};

}  // namespace perseus
