#include "transport/send_queue.h"

#include <algorithm>
#include <utility>

namespace perseus {

void SendQueue::push(Transfer& transfer) {
  transfer.next = nullptr;
  if (first_ == nullptr) {
    first_ = last_ = &transfer;
  } else if (last_->priority >= transfer.priority) {
    last_ = last_->next = &transfer;
  } else {
    Transfer** place = &first_;
    while ((*place)->priority >= transfer.priority) place = &(*place)->next;
    transfer.next = std::exchange(*place, &transfer);
  }
}

bool SendQueue::next(Frame& frame, uint64_t room) {
  if (first_ == nullptr) return false;
  Transfer& transfer = *first_;
  const uint64_t length = std::min(transfer.bytes - transfer.handed, room);
  frame.header = {};
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
  frame.header.length = static_cast<uint32_t>(length);
  frame.header.size = transfer.bytes;
  frame.header.offset = transfer.handed;
  frame.header.tag = transfer.tag;
  frame.data = transfer.source + transfer.handed;
  frame.transfer = &transfer;
  transfer.handed += length;
  if (transfer.handed == transfer.bytes) {
    first_ = transfer.next;
    if (first_ == nullptr) last_ = nullptr;
    transfer.next = std::exchange(leaving_, &transfer);
  }
  return true;
}

void SendQueue::sent(const Frame& frame) {
  Transfer& transfer = *frame.transfer;
  transfer.moved += frame.header.length;
  if (transfer.moved != transfer.bytes) return;
  Transfer** place = &leaving_;
  while (*place != &transfer) place = &(*place)->next;
  *place = transfer.next;
  transfer.finish(loop_, Status::ok());
}

void SendQueue::clear(const Status& why) {
  for (Transfer** list : {&first_, &leaving_}) {
    while (*list != nullptr) {
      Transfer* transfer = std::exchange(*list, (*list)->next);
      transfer->finish(loop_, why);
    }
  }
  last_ = nullptr;
}

}  // namespace perseus
