// The receiving half of a link: matches frames with posted receives, whichever comes first. The
// frames of a message may arrive in any order. Loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "base/status.h"
#include "transport/channel.h"
#include "transport/tag_table.h"

namespace perseus {

class Inbox {
 public:
  Inbox(EventLoop& loop, BufferPool& buffers) : loop_(loop), buffers_(buffers) {}

  // Returns whether there is neither a posted receive nor a message that waits for its receive.
  bool is_empty() const { return messages_.size() == 0; }

  // Returns whether a receive is posted.
  bool awaits() const { return awaits_since(UINT32_MAX); }  // turns never get that far
  // Returns whether a receive is posted whose `turn` is before this one.
  bool awaits_since(uint32_t turn) const;

  // Posts a receive for transfer.tag, and takes the frames of it that have arrived already. An
  // error means that these are none that the peer sends for it; the receive is posted all the same.
  Status post(Transfer& transfer);
  // Like post, for a link that gets no more frames: a message that is not complete ends with `why`.
  void post_last(Transfer& transfer, const Status& why);

  // Takes a data frame, whose header must lie within the message (offset + length <= size). An
  // error means that the peer broke the protocol. `held` tells whether the frame had to be kept: in
  // place under its lease, else as a copy. `channel`: by which it came.
  Status arrived(const FrameHeader& header, const std::byte* data, Lease lease, bool& held,
                 int channel = 0);
  // Returns the channel by which the message began to arrive.
  int channel_of(const Tag& tag);
  // Returns where the frame may be read to directly, or null. Call landed() once it has been.
  std::byte* target(const FrameHeader& header);
  void landed(const FrameHeader& header);

  // Ends every posted receive with `why`. Frames that were kept stay, for post_last.
  void fail_posted(const Status& why);
  // The same, and drops all frames.
  void clear(const Status& why);

 private:
  // A frame that arrived before its receive was posted.
  struct HeldFrame {
    uint64_t offset = 0;
    uint32_t length = 0;
    uint32_t next = IncomingMessage::kNone;
    const std::byte* data = nullptr;
    Lease lease;
    Buffer copy;
  };

  // Takes the frames that are held for the message's receive.
  Status take_held(IncomingMessage& message);
  Status apply(Transfer& transfer, uint64_t offset, uint32_t length, const std::byte* data);
  Status hold(IncomingMessage& message, const FrameHeader& header, const std::byte* data,
              Lease lease);
  // Drops the first frame that is held for the message.
  void drop_first_held(IncomingMessage& message);
  void finish_if_complete(IncomingMessage& message);

  EventLoop& loop_;
  BufferPool& buffers_;
  TagTable messages_;
  std::vector<HeldFrame> held_;
  uint32_t free_held_ = IncomingMessage::kNone;
};

}  // namespace perseus
