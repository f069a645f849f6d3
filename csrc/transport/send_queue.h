// The sending half of a link: keeps messages in order of priority and cuts them into frames. Loop
// thread.
#pragma once

#include <cstdint>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/channel.h"

namespace perseus {

class SendQueue {
 public:
  explicit SendQueue(EventLoop& loop) : loop_(loop) {}

  // Inserts the message behind all of the same or a higher priority.
  void push(Transfer& transfer);
  bool empty() const { return first_ == nullptr; }
  // The priority of the most urgent message; there must be one.
  int32_t priority() const { return first_->priority; }
  // Takes the next frame of the most urgent message, of at most `room` bytes; false if there is
  // none.
  bool next(Frame& frame, uint64_t room);
  // A frame of next() has been sent; ends its transfer if it was the last frame.
  void sent(const Frame& frame);
  // Ends every transfer with `why`. Frames not yet reported as sent must not be reported any more.
  void clear(const Status& why);

 private:
  EventLoop& loop_;
  Transfer* first_ = nullptr;  // messages not yet taken whole, most urgent first
  Transfer* last_ = nullptr;
  // Messages taken whole, of which channels still hold frames. There are few of them, so a plain
  // list is enough.
  Transfer* leaving_ = nullptr;
};

}  // namespace perseus
