// A link moves tagged messages between this rank and one other, in any order, and reports death.
// It knows nothing of collectives. Everything here runs on the event loop's thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/event_loop.h"
#include "base/reduction.h"
#include "base/status.h"

namespace perseus {

// Names one message between two ranks. Both ends must use the same; a tag may be used again once
// its message has been received.
struct Tag {
  uint64_t operation = 0;  // process set and sequence number of the operation
  uint32_t shard = 0;
  uint32_t step = 0;  // a collective's own numbering of its messages
  bool operator==(const Tag&) const = default;
};

// Has what is kept for a SharedPayload.
class SharedPayloadStore {
 public:
  virtual void release(uint32_t place) = 0;

 protected:
  ~SharedPayloadStore() = default;
};

// The same bytes on their way to several peers. A channel that can show one copy to all of them
// keeps that here until the last has been told of it. Must outlive the transfers.
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
  // A peer has been told.
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

// One message on its way out or awaited. Lives in the frame of the coroutine that started it and
// must stay where it is until done; `co_await transfer` gives its Status. The memory it points at
// belongs to the link until then.
class Transfer {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  bool done() const { return done_; }
  bool await_ready() const noexcept { return done_; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  Status await_resume() { return std::move(status_); }

  // For links: what is being moved and how far it has got.
  Tag tag;
  int32_t priority = 0;
  const std::byte* source = nullptr;     // sends
  SharedPayload* shared = nullptr;       // sends: of bytes that others get too, or null
  std::byte* target = nullptr;           // receives: where bytes go, or the accumulator
  const Reduction* reduction = nullptr;  // receives: null copies
  bool streaming = false;                // receives: more is under way than caches hold
  uint64_t bytes = 0;                    // of the message on the wire
  uint64_t handed = 0;                   // links' own count: bytes of a send given to channels
  uint64_t moved = 0;                    // links' own count: bytes sent or received
  Transfer* next = nullptr;              // links' own list

  // For links: ends the transfer and resumes who awaits it in the loop's next turn.
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

  // Rank at the other end.
  int peer() const { return peer_; }
  // Whether both ends are on one host and share memory.
  virtual bool is_local() const = 0;

  // Starts sending `bytes` from `data` under `tag`. Among messages waiting on this link, the one
  // with the higher priority goes first, from the next chunk on; equal ones in order of starting.
  // `shared`, if not null, joins sends of the same bytes on several links.
  void send(Transfer& transfer, Tag tag, const void* data, uint64_t bytes, int32_t priority,
            SharedPayload* shared = nullptr) {
    transfer.tag = tag;
    transfer.shared = shared;
    transfer.source = static_cast<const std::byte*>(data);
    transfer.bytes = bytes;
    transfer.priority = priority;
    start_send(transfer);
  }
  // Awaits the message `tag` of exactly `bytes` bytes into `target`. With a reduction, each
  // arriving element is folded into the accumulator at `target` instead of being stored; the
  // Reduction must outlive the transfer. A message of another size ends it with kInternal. With
  // `streaming`, what is stored need not stay in the caches.
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
