// The seam between a link and what carries its bytes. A link cuts messages into frames; a channel
// (a ring in shared memory, one TCP connection, MPI) moves frames, in order, between two ranks. A
// link may have several channels: whichever is free pulls the next frame, so a slow one delays
// only the frame it holds, and an urgent message overtakes a long one at the next frame.
//
// Everything here runs on the event loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "transport/link.h"

namespace perseus {

// As on the wire; all ranks are little-endian.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x50525300;  // "PRS"; the low byte is the kind
  enum Kind : uint32_t {
    kData = 1,
    kControl = 2,
    kGoodbye = 3,  // the last frame on its channel: this rank shuts down in order
  };

  uint32_t magic_and_kind = 0;
  uint32_t length = 0;  // bytes that follow this header
  uint64_t size = 0;    // of the whole message
  uint64_t offset = 0;  // of this frame in it
  Tag tag;              // of data; zero otherwise

  Kind kind() const { return static_cast<Kind>(magic_and_kind & 0xff); }
};
static_assert(sizeof(FrameHeader) == 40);

// One frame on its way out: `data` stays valid until the channel calls FramePort::sent.
struct Frame {
  FrameHeader header;
  const std::byte* data = nullptr;
  Transfer* transfer = nullptr;  // the port's own: null for control and goodbye
};

// Has memory that frames lie in.
class PayloadOwner {
 public:
  virtual void give_back(uint32_t place) = 0;

 protected:
  ~PayloadOwner() = default;
};

// The right to read a frame's bytes where they are, until it ends. May be empty: then the bytes are
// only there for the time of a call.
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

// What a link offers to one of its channels. A channel that called failed(), or was told false by
// arrived() or landed(), has been closed by then and must leave the port alone.
class FramePort {
 public:
  // Takes the next frame to send, of at most `room` payload bytes (a positive multiple of 64:
  // frames hold whole elements). False if there is none now; Channel::kick tells when there may be.
  virtual bool next(Frame& frame, uint64_t room) = 0;
  // The frame's bytes have been copied or handed to the kernel. Frames taken must be reported in
  // the order they were taken.
  virtual void sent(const Frame& frame) = 0;

  // Two styles of handing over what arrives; a channel may mix them frame by frame.
  // 1. The bytes are at hand, aligned to 8: they are copied or reduced to where they belong
  //    before this returns, or kept under the lease if there is one.
  virtual bool arrived(const FrameHeader& header, const std::byte* data, Lease lease) = 0;
  // 2. The bytes are still to be read: target() says where to read header.length bytes to, and
  //    landed() that they are there. A null target: read them to memory of the channel's own, then
  //    call arrived(); this is so for reductions, for messages nobody awaits yet and for bad
  //    headers.
  virtual std::byte* target(const FrameHeader& header) = 0;
  virtual bool landed(const FrameHeader& header) = 0;

  // Whether data is awaited or under way to here. For a channel that has nothing to sleep on (MPI)
  // and so looks for frames only then.
  virtual bool awaits_data() const = 0;

  // Upper bound of header.length that arrived() accepts; a channel checks it before reading.
  virtual uint64_t max_length() const = 0;

  // The channel broke; `why` names the cause only, the link adds rank and host. It is the peer's,
  // or, if `why` is "out of memory", this rank's own want of memory or descriptors. A channel that
  // meets the end of the stream calls this too; after the peer's goodbye it is no error.
  virtual void failed(const Status& why) = 0;

 protected:
  ~FramePort() = default;
};

// Made with its port, by one side's mesh; does nothing before start().
class Channel {
 public:
  enum class Kind { kShm, kTcp, kMpi };

  virtual ~Channel() = default;  // frees everything; start() need not have been called
  virtual Kind kind() const = 0;
  // Begins to send and to receive. May call the port.
  virtual void start() = 0;
  // There may be frames to send: pulls and sends as many as go without waiting.
  virtual void kick() = 0;
  // Gives up its place in the loop and its connection, frames under way included. The peer sees the
  // end of the stream. Memory handed to the port in a call still running must stay readable until
  // that call returns. Idempotent; may be called from within any call to the port.
  virtual void close() = 0;
};

}  // namespace perseus
