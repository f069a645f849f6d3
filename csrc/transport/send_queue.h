// The sending half of a link: messages in order of priority, cut into frames. Loop thread.
#pragma once

#include <cstdint>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/channel.h"

namespace perseus {

class SendQueue {
 public:
  explicit SendQueue(EventLoop& loop) : loop_(loop) {}

  // Behind all of the same or a higher priority.
  void push(Transfer& transfer);
  bool empty() const { return first_ == nullptr; }
  // Of the most urgent message; there must be one.
  int32_t priority() const { return first_->priority; }
  // The next frame, of at most `room` bytes, of the most urgent message; false if there is none.
  bool next(Frame& frame, uint64_t room);
  // A frame of next() has left; ends its transfer if it was the last.
  void sent(const Frame& frame);
  // Ends every transfer with `why`; frames not yet reported as sent must not be reported any more.
  void clear(const Status& why);

 private:
  EventLoop& loop_;
  Transfer* first_ = nullptr;  // not yet handed out whole, most urgent first
  Transfer* last_ = nullptr;
  // Handed out whole, with frames still in the hands of channels: no more than these can hold, so
  // a plain list will do.
  Transfer* leaving_ = nullptr;
};

}  // namespace perseus
