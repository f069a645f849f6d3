// A link moves tagged messages between this rank and one other, in any order, and reports the death
// of that rank. It knows nothing of collectives. Everything here runs on the event loop's thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/event_loop.h"
#include "base/reduction.h"
#include "base/status.h"

namespace perseus {

// Identifies one message between two ranks; both ends must use the same tag. A tag may be reused
// once its message has been received.
struct Tag {
  uint64_t operation = 0;  // process set and sequence number of the operation
  uint32_t shard = 0;
  uint32_t step = 0;  // a collective's own numbering of its messages
  bool operator==(const Tag&) const = default;
};

// Stores the bytes of a SharedPayload.
class SharedPayloadStore {
 public:
  virtual void release(uint32_t place) = 0;

 protected:
  ~SharedPayloadStore() = default;
};

// Bytes that are sent to several peers. If a channel can share one copy with all of them, that copy
// is stored until the last send. Must outlive the transfers.
class SharedPayload {
 public:
  explicit SharedPayload(int sends) : sends_left_(sends) {}
  SharedPayload(const SharedPayload&) = delete;
  ~SharedPayload() { release(); }

  bool is_stored() const { return store_ != nullptr; }
  uint32_t place() const { return place_; }
  bool has_more_sends() const { return sends_left_ > 1; }
  void store(SharedPayloadStore& store, uint32_t place) {
    store_ = &store;
    place_ = place;
  }
  // The payload has been sent to one more peer.
  void note_sent() {
    if (--sends_left_ == 0) release();
  }

 private:
  void release() {
    if (SharedPayloadStore* store = std::exchange(store_, nullptr)) store->release(place_);
  }

  SharedPayloadStore* store_ = nullptr;
  uint32_t place_ = 0;
  int sends_left_;
};

// A message that is being sent or received. Lives in the frame of the coroutine that started it,
// and must not move until it is done; `co_await transfer` returns its Status. Until then the memory
// that it points to belongs to the link.
class Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  bool done() const { return done_; }
  bool await_ready() const noexcept { return done_; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  Status await_resume() { return std::move(status_); }

  // For links: what to move, and the progress so far.
  Tag tag;
  int32_t priority = 0;
  const std::byte* source = nullptr;     // sends
  SharedPayload* shared = nullptr;       // sends: if other peers get the same bytes, else null
  std::byte* target = nullptr;           // receives: where bytes go, or the accumulator
  const Reduction* reduction = nullptr;  // receives: null to copy
  bool streaming = false;                // receives: the data need not stay in the caches
  uint32_t turn = 0;                     // receives: the link's turn when this one was posted
  uint64_t bytes = 0;                    // of the message on the wire
  uint64_t handed = 0;                   // sends: bytes given to channels so far
  uint64_t moved = 0;                    // bytes sent or received so far
  Transfer* next = nullptr;              // in a list of the link's

  // For links: ends the transfer, and resumes the coroutine that awaits it in the loop's next turn.
  void finish(EventLoop& loop, Status status) {
    status_ = std::move(status);
    done_ = true;
    if (waiter_) loop.schedule(std::exchange(waiter_, nullptr));
  }

 private:
  std::coroutine_handle<> waiter_;
  Status status_;
  bool done_ = false;
};

class Link {
 public:
  virtual ~Link() = default;

  // The rank at the other end.
  int peer() const { return peer_; }

  // Starts to send `bytes` bytes from `data` under `tag`. Among the messages that wait on this
  // link, the one with the highest priority goes first, from the next chunk on; equal ones go in
  // the order of these calls. A `shared` that is not null joins sends of the same bytes on several
  // links.
  void send(Transfer& transfer, Tag tag, const void* data, uint64_t bytes, int32_t priority,
            SharedPayload* shared = nullptr) {
    transfer.tag = tag;
    transfer.shared = shared;
    transfer.source = static_cast<const std::byte*>(data);
    transfer.bytes = bytes;
    transfer.priority = priority;
    start_send(transfer);
  }
  // Starts to receive the message `tag`, of exactly `bytes` bytes, into `target`. With a reduction,
  // each arriving element is reduced into the accumulator at `target` instead of being stored; the
  // Reduction must outlive the transfer. A message of another size ends the link. Set `streaming`
  // if more data is under way than the caches hold, so that it need not stay there.
  void receive(Transfer& transfer, Tag tag, void* target, uint64_t bytes,
               const Reduction* reduction = nullptr, bool streaming = false) {
    transfer.tag = tag;
    transfer.target = static_cast<std::byte*>(target);
    transfer.bytes = bytes;
    transfer.reduction = reduction;
    transfer.streaming = streaming;
    start_receive(transfer);
  }

 protected:
  explicit Link(int peer) : peer_(peer) {}
  virtual void start_send(Transfer& transfer) = 0;
  virtual void start_receive(Transfer& transfer) = 0;

 private:
  int peer_;
};

}  // namespace perseus
