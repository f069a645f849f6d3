#include "transport/inbox.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/streaming_copy.h"

namespace perseus {
namespace {

Status size_mismatch(uint64_t expected, uint64_t size) {
  return Status::internal("a message of " + std::to_string(size) + " bytes arrived where " +
                          std::to_string(expected) + " were expected");
}

}  // namespace

bool Inbox::awaits_since(uint32_t turn) const {
  return messages_.size() != 0 && messages_.any_of([turn](const IncomingMessage& message) {
    return message.posted != nullptr && message.posted->turn < turn;
  });
}

Status Inbox::post(Transfer& transfer) {
  IncomingMessage& message = messages_.find_or_insert(transfer.tag);
  if (message.posted != nullptr) {
    transfer.finish(loop_, Status::internal("two messages under one tag (operation " +
                                            std::to_string(transfer.tag.operation) + ", shard " +
                                            std::to_string(transfer.tag.shard) + ", step " +
                                            std::to_string(transfer.tag.step) + ")"));
    return Status::ok();
  }
  message.posted = &transfer;
  if (!message.begun) return Status::ok();
  if (transfer.bytes != message.size) return size_mismatch(transfer.bytes, message.size);
  PERSEUS_RETURN_IF_ERROR(take_held(message));
  finish_if_complete(message);
  return Status::ok();
}

Status Inbox::take_held(IncomingMessage& message) {
  while (message.first_held != IncomingMessage::kNone) {
    const HeldFrame& frame = held_[message.first_held];
    const Status status = apply(*message.posted, frame.offset, frame.length, frame.data);
    drop_first_held(message);
    PERSEUS_RETURN_IF_ERROR(status);
  }
  return Status::ok();
}

void Inbox::post_last(Transfer& transfer, const Status& why) {
  IncomingMessage* const message = messages_.find(transfer.tag);
  const bool complete = message != nullptr && message->begun && message->got == message->size &&
                        message->posted == nullptr;
  if (complete && post(transfer).is_ok()) return;
  if (complete) message->posted = nullptr;
  transfer.finish(loop_, why);
}

int Inbox::channel_of(const Tag& tag) {
  const IncomingMessage* message = messages_.find(tag);
  return message == nullptr ? 0 : message->channel;
}

Status Inbox::arrived(const FrameHeader& header, const std::byte* data, Lease lease, bool& held,
                      int channel) {
  held = false;
  IncomingMessage& message = messages_.find_or_insert(header.tag);
  if (!message.begun) {
    message.begun = true;
    message.size = header.size;
    message.channel = channel;
    const Transfer* receive = message.posted;
    if (receive != nullptr && receive->bytes != header.size) {
      return size_mismatch(receive->bytes, header.size);
    }
  }
  if (message.size != header.size || header.length > message.size - message.claimed) {
    return Status::internal("frames of one message contradict each other");
  }
  message.claimed += header.length;
  message.got += header.length;
  if (message.posted != nullptr) {
    PERSEUS_RETURN_IF_ERROR(apply(*message.posted, header.offset, header.length, data));
  } else {
    held = true;
    PERSEUS_RETURN_IF_ERROR(hold(message, header, data, std::move(lease)));
  }
  finish_if_complete(message);
  return Status::ok();
}

std::byte* Inbox::target(const FrameHeader& header) {
  IncomingMessage* message = messages_.find(header.tag);
  if (message == nullptr || message->posted == nullptr) return nullptr;
  Transfer& transfer = *message->posted;
  if (transfer.reduction != nullptr || transfer.bytes != header.size) return nullptr;
  if (header.length > transfer.bytes - message->claimed) return nullptr;
  message->begun = true;
  message->size = header.size;
  message->claimed += header.length;
  return transfer.target + header.offset;
}

void Inbox::landed(const FrameHeader& header) {
  IncomingMessage* message = messages_.find(header.tag);
  message->got += header.length;
  message->posted->moved += header.length;
  finish_if_complete(*message);
}

void Inbox::finish_if_complete(IncomingMessage& message) {
  if (!message.begun || message.got != message.size) return;
  Transfer* const transfer = message.posted;
  if (transfer == nullptr) return;  // waits for its receive
  messages_.erase(message);
  transfer->finish(loop_, Status::ok());
}

Status Inbox::apply(Transfer& transfer, uint64_t offset, uint32_t length, const std::byte* data) {
  transfer.moved += length;
  if (length == 0) return Status::ok();
  const Reduction* reduction = transfer.reduction;
  if (reduction == nullptr) {
    if (transfer.streaming) {
      streaming_copy(transfer.target + offset, data, length);
    } else {
      std::memcpy(transfer.target + offset, data, length);
    }
    return Status::ok();
  }
  if (offset % reduction->arriving_size != 0 || length % reduction->arriving_size != 0) {
    return Status::internal("a frame to be reduced does not hold whole elements of " +
                            std::to_string(reduction->arriving_size) + " bytes");
  }
  std::byte* accumulator =
      transfer.target + offset / reduction->arriving_size * reduction->accumulator_size;
  reduction->kernel(accumulator, data, length / reduction->arriving_size);
  return Status::ok();
}

Status Inbox::hold(IncomingMessage& message, const FrameHeader& header, const std::byte* data,
                   Lease lease) {
  Buffer copy;
  if (!lease) {
    copy = buffers_.take(header.length);
    if (!copy) return Status::out_of_memory("no memory to keep a frame that arrived early");
    if (header.length != 0) std::memcpy(copy.data(), data, header.length);
    data = copy.data();
  }
  uint32_t index = free_held_;
  if (index == IncomingMessage::kNone) {
    index = static_cast<uint32_t>(held_.size());
    held_.emplace_back();
  } else {
    free_held_ = held_[index].next;
  }
  HeldFrame& frame = held_[index];
  frame.offset = header.offset;
  frame.length = header.length;
  frame.next = IncomingMessage::kNone;
  frame.data = data;
  frame.lease = std::move(lease);
  frame.copy = std::move(copy);
  if (message.first_held == IncomingMessage::kNone) {
    message.first_held = index;
  } else {
    held_[message.last_held].next = index;
  }
  message.last_held = index;
  return Status::ok();
}

void Inbox::drop_first_held(IncomingMessage& message) {
  const uint32_t index = message.first_held;
  HeldFrame& frame = held_[index];
  message.first_held = frame.next;
  frame.lease = Lease();
  frame.copy = Buffer();
  frame.next = std::exchange(free_held_, index);
}

void Inbox::fail_posted(const Status& why) {
  messages_.for_each([&](IncomingMessage& message) {
    if (message.posted == nullptr) return;
    std::exchange(message.posted, nullptr)->finish(loop_, why);
  });
}

void Inbox::clear(const Status& why) {
  fail_posted(why);
  messages_.clear();
  held_.clear();
  free_held_ = IncomingMessage::kNone;
}

}  // namespace perseus
