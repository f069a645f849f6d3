// The receiving half of a link: brings frames and posted receives together, whichever comes first.
// Frames of a message may come in any order. Loop thread.
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

  // Nothing is awaited, and nothing has come that waits for its receive.
  bool is_empty() const { return messages_.size() == 0; }

  // Awaits transfer.tag; takes what has arrived of it already.
  void post(Transfer& transfer);
  // As post, for a link that gets no more frames: what is not complete ends with `why`.
  void post_last(Transfer& transfer, const Status& why);

  // A frame of data whose header lies within the message (offset + length <= size). An error means
  // that the peer broke the protocol. `held` tells whether it had to be kept: where it is under a
  // lease, else in a copy.
  Status arrived(const FrameHeader& header, const std::byte* data, Lease lease, bool& held);
  // Where the frame may be read to directly, or null; then landed() once it has been.
  std::byte* target(const FrameHeader& header);
  void landed(const FrameHeader& header);

  // Ends every posted receive with `why`; frames that were kept stay, for post_last.
  void fail_posted(const Status& why);
  // The same, and forgets all frames.
  void clear(const Status& why);

 private:
  // A frame nobody awaited when it came.
  struct HeldFrame {
    uint64_t offset = 0;
    uint32_t length = 0;
    uint32_t next = IncomingMessage::kNone;
    const std::byte* data = nullptr;
    Lease lease;
    Buffer copy;
  };

  // Fixes the message's size with its first frame, or when the receive meets frames.
  void match_size(IncomingMessage& message);
  Status apply(Transfer& transfer, uint64_t offset, uint32_t length, const std::byte* data);
  Status hold(IncomingMessage& message, const FrameHeader& header, const std::byte* data,
              Lease lease);
  // Takes the first frame that is kept of the message off its list, and forgets its bytes.
  void drop_first_held(IncomingMessage& message);
  void drop_held(IncomingMessage& message);
  void finish_if_complete(IncomingMessage& message);

  EventLoop& loop_;
  BufferPool& buffers_;
  TagTable messages_;
  std::vector<HeldFrame> held_;
  uint32_t free_held_ = IncomingMessage::kNone;
};

}  // namespace perseus
