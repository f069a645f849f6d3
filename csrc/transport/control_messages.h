// A link's control messages in both directions. Those to send are cut into frames, in order; those
// that arrive are put together again. Loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer_pool.h"
#include "base/status.h"
#include "transport/channel.h"

namespace perseus {

class ControlMessages {
 public:
  static constexpr uint64_t kMostBytes = 64 << 20;

  explicit ControlMessages(BufferPool& buffers) : buffers_(buffers) {}

  // Copies the message, which is to be sent after all others.
  Status push(std::span<const std::byte> message);
  // Takes the next frame, of at most `room` bytes; false if there is none.
  bool next(Frame& frame, uint64_t room);
  // A frame of next() has been sent. Returns whether its message has now been sent whole.
  bool sent(const Frame& frame);
  // Drops what has not been sent.
  void clear();

  // A message that has arrived whole.
  struct Arrived {
    Buffer memory;  // that it lies in, unless it came in one frame
    std::span<const std::byte> bytes;
  };
  // Takes a frame that has arrived, and sets `message` if that was the last one of its message. An
  // error means that the peer broke the protocol, or that there is no memory.
  Status arrived(const FrameHeader& header, const std::byte* data, std::optional<Arrived>& message);

 private:
  struct Message {
    Buffer data;
    uint32_t length = 0;
    uint32_t handed = 0;
  };

  BufferPool& buffers_;
  // Messages not yet sent: [head_, end). The channel has taken those before next_.
  std::vector<Message> messages_;
  size_t head_ = 0, next_ = 0;
  // A message of several frames, as far as it has arrived.
  Buffer incoming_;
  uint64_t got_ = 0;
};

}  // namespace perseus
