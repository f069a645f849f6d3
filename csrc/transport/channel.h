// The interface between a link and the channels that carry its bytes. A link cuts messages into
// frames; a channel (a ring in shared memory, one TCP connection, MPI) moves frames, in order,
// between two ranks. A link may have several channels. Whichever is free pulls the next frame, so a
// slow channel delays only the frame that it holds, and an urgent message overtakes a long one at
// the next frame.
//
// Everything here runs on the event loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/event_loop.h"
#include "base/status.h"
#include "rollcall/board.h"
#include "transport/link.h"

namespace perseus {

// A frame's payload holds whole elements of any type, aligned.
inline constexpr uint64_t kFrameMultiple = 64;
inline uint64_t whole_elements(uint64_t bytes) { return bytes / kFrameMultiple * kFrameMultiple; }

// In the format of the wire; all ranks are little-endian.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x50525300;  // "PRS"; the low byte is the kind
  enum Kind : uint32_t {
    kData = 1,
    kControl = 2,
    kGoodbye = 3,  // the last frame on its channel, when a rank shuts down normally
    // Over TCP, a mark says that all data before it on its channel has arrived if the mark has. It
    // comes when the peer asks for one, and after kMarkedBytes of data at the latest.
    kMark = 4,
    // Where control messages go, also over TCP only:
    kMarkRequest = 5,  // asks for a mark on each channel
    kBreakOff = 6,     // the last frame; says that something between the ranks is to blame for that
    kRenewal = 7,      // after a goodbye: the channel goes on in another world (link_renewal.h)
  };

  uint32_t magic_and_kind = 0;
  uint32_t length = 0;                          // bytes that follow this header
  uint64_t size = 0;                            // of the whole message
  uint64_t offset = 0;                          // of this frame in the message
  Tag tag;                                      // of data frames
  uint64_t& number() { return tag.operation; }  // of a request for marks, or the last one answered
  uint64_t number() const { return tag.operation; }

  Kind kind() const { return static_cast<Kind>(magic_and_kind & 0xff); }
};
static_assert(sizeof(FrameHeader) == 40);

// How much data a channel carries between two marks; each frame counts as some bytes more.
inline constexpr uint64_t kMarkedBytes = 8 << 20;
inline constexpr uint64_t kMarkedFrame = 1 << 10;

// A frame to send. `data` stays valid until the channel calls FramePort::sent.
struct Frame {
  FrameHeader header;
  const std::byte* data = nullptr;
  Transfer* transfer = nullptr;  // for the port; null for control and goodbye
};

// Owns memory that frames lie in.
class PayloadOwner {
 public:
  virtual void give_back(uint32_t place) = 0;

 protected:
  ~PayloadOwner() = default;
};

// The right to read a frame's bytes in place for as long as this exists. If it is empty, the bytes
// are valid only during the call.
class Lease {
 public:
  Lease() = default;
  Lease(PayloadOwner& owner, uint32_t place) : owner_(&owner), place_(place) {}
  Lease(Lease&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), place_(other.place_) {}
  Lease& operator=(Lease&& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~Lease() {
    if (owner_ != nullptr) owner_->give_back(place_);
  }
  explicit operator bool() const { return owner_ != nullptr; }

 private:
  PayloadOwner* owner_ = nullptr;
  uint32_t place_ = 0;
};

// A link's interface for one of its channels. After the channel has called failed(), or arrived()
// or landed() has returned false, the channel has been closed and must not use the port any more;
// or, if arrived() has returned false and the channel is open, it hands nothing more over until it
// has moved to another port, but still sends.
class FramePort {
 public:
  // Takes the next frame to send, of at most `room` payload bytes (a positive multiple of 64, since
  // frames hold whole elements). Returns false if there is none; Channel::kick tells when there may
  // be one.
  virtual bool next(Frame& frame, uint64_t room) = 0;
  // The frame's bytes have been copied or handed to the kernel. Frames must be reported in the
  // order in which they were taken.
  virtual void sent(const Frame& frame) = 0;

  // There are two ways to hand over an arriving frame; a channel may choose for each frame.
  // 1. The bytes are in memory, aligned to 8. They are copied or reduced to their target before
  //    this returns, or kept under the lease if there is one.
  virtual bool arrived(const FrameHeader& header, const std::byte* data, Lease lease) = 0;
  // 2. The bytes must still be read. target() says where to read header.length bytes to, and the
  //    channel calls landed() when they are there. If target() returns null (for reductions,
  //    messages without a receive yet, and malformed headers), the channel reads the bytes to its
  //    own memory and calls arrived().
  virtual std::byte* target(const FrameHeader& header) = 0;
  virtual bool landed(const FrameHeader& header) = 0;

  // Returns whether data is awaited or arriving. A channel that cannot sleep until a frame comes
  // (MPI) polls for frames only then.
  virtual bool awaits_data() const = 0;

  // The largest header.length that arrived() accepts; a channel checks it before reading.
  virtual uint64_t max_length() const = 0;

  // The channel has failed. `why` names only the cause; the link adds rank and host. The cause lies
  // with the peer or, if `why` is kOutOfMemory, with this rank, which lacks memory or descriptors.
  // A channel calls this at the end of the stream, too, which is no error after the peer's goodbye.
  virtual void failed(const Status& why) = 0;
  // The same, if something between the ranks is to blame, and neither of them.
  virtual void disturbed(const std::string& how) = 0;

 protected:
  ~FramePort() = default;
};

// Created by the mesh, with its port. Does nothing before start().
class Channel {
 public:
  enum class Kind { kShm, kTcp, kMpi };

  virtual ~Channel() = default;  // start() need not have been called
  virtual Kind kind() const = 0;
  // Begins to send and receive. May call the port.
  virtual void start() = 0;
  // There may be frames to send: pulls and sends as many as it can without waiting.
  virtual void kick() = 0;
  // Leaves the loop and closes the connection, dropping frames under way. The peer sees the end of
  // the stream. Memory passed to the port in a call that is still running must stay readable until
  // that call returns. Idempotent; may be called from within any call to the port.
  virtual void close() = 0;

  // A channel may outlive its world: it parts from its link when all that its peer had to say there
  // has been said, and moves to the port of another one. Returns whether the channel can.
  virtual bool can_move() const { return false; }
  // The transfers under way end: what the channel still has to send or read of them is in its own
  // memory from now on. Frame::transfer is null in what it reports as sent.
  virtual void release_transfers() {}
  // Leaves its loop, and calls the port no more. Returns false if it is in the middle of a frame or
  // closed, and so cannot move. Not from within a call to the port.
  virtual bool part() { return false; }
  // After part(): belongs to this loop and port from now on, and begins with start().
  virtual void move_to(EventLoop& /*loop*/, FramePort& /*port*/) {}

  // The peer's board, if it can be seen and the channel is open.
  virtual SharedBoard peer_board() const { return {}; }
  // The way that frames take to this rank, for messages: "from ADDRESS to ADDRESS", or "".
  virtual std::string route() const { return ""; }
  // Returns how many bytes have arrived so far, if the channel goes over a network.
  virtual uint64_t bytes_received() const { return 0; }
};

}  // namespace perseus
