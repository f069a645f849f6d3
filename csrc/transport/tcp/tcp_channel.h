// Moves frames over one TCP connection. Small frames are gathered into one system call, and the
// payload of a large frame is read straight to its target. The frame's tag, if it has one, follows
// it (frame_guard.h). Loop thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "base/file_descriptor.h"
#include "base/session.h"
#include "transport/channel.h"
#include "transport/handshake.h"
#include "transport/tcp/frame_guard.h"

namespace perseus {

class TcpChannel final : public Channel, private FdHandler {
 public:
  // A peer that acknowledges nothing for about twice `silence` is given up. An express channel
  // keeps as little as possible in the kernel, at the cost of speed.
  TcpChannel(EventLoop& loop, BufferPool& buffers, ProvenConnection connection, FramePort& port,
             std::chrono::seconds silence, const WireProtection& protection = {},
             bool is_express = false);
  ~TcpChannel() override;

  Kind kind() const override { return Kind::kTcp; }
  void start() override;
  void kick() override;
  void close() override;
  bool can_move() const override { return open_; }
  void release_transfers() override;
  bool part() override;
  void move_to(EventLoop& loop, FramePort& port) override;
  std::string route() const override;
  uint64_t bytes_received() const override { return received_; }

 private:
  // Bounds on the frames written at once: few and short, so that urgent data need not wait.
  static constexpr size_t kMaxBatch = 16;
  static constexpr uint64_t kBatchBytes = 32 << 10;
  static constexpr size_t kStageBytes = 32 << 10;

  void set_options(std::chrono::seconds silence);
  void on_ready(uint32_t epoll_events) override;

  void adjust_unsent_limit();
  // Sends until there is nothing left to send or the socket is full.
  void flush();
  bool refill();
  // Makes the tag of batch_[count_] and, if that is encrypted, its bytes in sealed_ from `offset`
  // on. Returns false if the channel is closed.
  bool seal(size_t offset);
  size_t bytes_on_wire(const Frame& frame) const;
  // Writes as much of the batch as it can; returns false if the socket is full or the channel
  // closed.
  bool write_batch();
  void retire_sent(size_t bytes);
  void want_write(bool want);
  // Watches the socket for what the channel wants of it.
  void watch();

  // Reads once; returns false if there is no more to read now or the channel is closed.
  bool read_some();
  // Takes frames out of the stage; returns false if the channel is closed.
  bool consume_stage();
  // Finds the target of header_'s payload, and moves there the bytes that the stage has of it.
  bool begin_payload();
  // Hands the frame over once its tag has arrived, too.
  bool finish_payload();
  // Hands a frame over; returns whether there may be more.
  bool hand_over(std::byte* payload);
  // Takes the tag out of the stage; reports a wrong one and returns false.
  bool take_tag(std::byte* payload);
  void broken(const char* what, int error);

  EventLoop* loop_;  // null after part()
  FramePort* port_;
  BufferPool& buffers_;
  FileDescriptor fd_;
  const std::unique_ptr<FrameGuard> guard_;
  const bool is_express_;
  bool open_ = true;
  bool wants_write_ = false;
  bool hands_over_ = true;  // what arrives

  // Sending: frames [first_, count_) of the batch, `written_` bytes of the first one gone.
  std::array<Frame, kMaxBatch> batch_;
  std::array<const std::byte*, kMaxBatch> bodies_;
  std::array<MessageTag, kMaxBatch> tags_;
  Buffer sealed_;    // the encrypted bodies of the batch
  Buffer released_;  // bodies whose transfers have ended
  size_t first_ = 0, count_ = 0;
  size_t written_ = 0;
  uint64_t unsent_limit_;  // bytes that may wait unsent in the kernel; also the largest frame
  Clock::time_point next_adjustment_{};

  // Receiving: [stage_begin_, stage_end_) of the stage is unread. After a header has been taken
  // out, its payload is read to payload_, which has payload_got_ bytes of it so far.
  uint64_t received_ = 0;  // bytes, in all
  Buffer stage_;
  size_t stage_begin_ = 0, stage_end_ = 0;
  bool has_header_ = false;
  bool direct_ = false;  // payload_ is the receive's own memory
  FrameHeader header_;
  Buffer scratch_;
  std::byte* payload_ = nullptr;
  size_t payload_got_ = 0;
};

}  // namespace perseus
