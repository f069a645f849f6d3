#include "transport/control_messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace perseus {

Status ControlMessages::push(std::span<const std::byte> message) {
  if (message.size() > kMostBytes) {
    return Status::internal("a control message of " + std::to_string(message.size()) +
                            " bytes is beyond the bound of " + std::to_string(kMostBytes));
  }
  Message queued;
  queued.data = buffers_.take(message.size());
  if (!queued.data) return Status::out_of_memory("no memory for a control message");
  queued.length = static_cast<uint32_t>(message.size());
  if (!message.empty()) std::memcpy(queued.data.data(), message.data(), message.size());
  messages_.push_back(std::move(queued));
  return Status::ok();
}

bool ControlMessages::next(Frame& frame, uint64_t room) {
  if (next_ == messages_.size()) return false;
  Message& message = messages_[next_];
  const uint64_t length = std::min<uint64_t>(message.length - message.handed, room);
  frame = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kControl;
  frame.header.length = static_cast<uint32_t>(length);
  frame.header.size = message.length;
  frame.header.offset = message.handed;
  frame.data = message.data.data() + message.handed;
  message.handed += static_cast<uint32_t>(length);
  if (message.handed == message.length) ++next_;
  return true;
}

bool ControlMessages::sent(const Frame& frame) {
  if (frame.header.offset + frame.header.length != frame.header.size) return false;
  messages_[head_++].data = Buffer();
  if (head_ == messages_.size()) clear();
  return true;
}

void ControlMessages::clear() {
  messages_.clear();
  head_ = next_ = 0;
}

Status ControlMessages::arrived(const FrameHeader& header, const std::byte* data,
                                std::optional<Arrived>& message) {
  if (header.offset != got_) {
    return Status::internal("parts of a control message arrived out of order");
  }
  if (header.length == header.size) {
    message = Arrived{Buffer(), {data, header.size}};
    return Status::ok();
  }
  if (header.offset == 0) incoming_ = buffers_.take(header.size);
  if (!incoming_ || incoming_.capacity() < header.size) {
    return Status::out_of_memory("no memory for a control message of " +
                                 std::to_string(header.size) + " bytes");
  }
  std::memcpy(incoming_.data() + header.offset, data, header.length);
  got_ += header.length;
  if (got_ != header.size) return Status::ok();
  got_ = 0;
  const std::byte* whole = incoming_.data();
  message = Arrived{std::move(incoming_), {whole, header.size}};
  incoming_ = Buffer();
  return Status::ok();
}

}  // namespace perseus
