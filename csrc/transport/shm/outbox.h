// The memory into which a rank puts payloads for the ranks of its host, in slots that all of them
// may read. The rings carry only a payload's place. So bytes for several peers are written once,
// and a payload that a peer cannot use yet stays where it is instead of being copied. Recently used
// slots are reused first, since they are likely to be in the cache. Before the slots lies the
// rank's board.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "rollcall/board.h"
#include "transport/link.h"
#include "transport/shm/ring.h"
#include "transport/shm/shared_memory.h"

namespace perseus {

constexpr uint32_t kOutboxSlots = 32;

// Lies in the shared memory, zeroed.
struct OutboxControl {
  // How many peers may still read each slot: incremented by the writer, decremented by readers.
  alignas(128) std::array<std::atomic<uint16_t>, kOutboxSlots> readers;
};
static_assert(std::atomic<uint16_t>::is_always_lock_free);

constexpr size_t kOutboxBoardBegin = 4096;
constexpr size_t kOutboxControlBytes = kOutboxBoardBegin + kBoardBytes;
// The extra 4,096 bytes leave room to choose a payload's offset within a page.
constexpr size_t kOutboxSlotBytes = kMaxRingFrame + 4096;
constexpr size_t kOutboxBytes = kOutboxControlBytes + kOutboxSlots * kOutboxSlotBytes;

// The writer's side. Loop thread.
class Outbox final : private SharedPayloadStore {
 public:
  // One more rank is going to read. The other functions may be called only after this succeeded.
  Status open_for_peer();
  // One of them reads no more. It may still have payloads on loan, which then stay where they are.
  void close_for_peer() { --peers_; }
  // Returns whether so many slots are on loan to ranks which read no more, and may have died, that
  // a new outbox is better. Call while no payload is under way.
  bool is_worn() const;
  int fd() const { return memory_->fd(); }
  // This rank's board. Call once it has been opened.
  SharedBoard board() const;

  // Puts the frame's payload into a slot for one reader, and returns its place, in units of 64
  // bytes, or kInline if all slots are in use. A shared payload that is stored already for another
  // peer is not copied again.
  uint32_t put(const Frame& frame);

 private:
  void release(uint32_t place) override;
  std::optional<uint32_t> take();

  std::shared_ptr<const SharedMemory> memory_;
  OutboxControl* control_ = nullptr;
  uint32_t peers_ = 0;
  std::array<uint8_t, kOutboxSlots> slots_by_recency_{};  // slots, the most recently used first
};

// A peer's outbox. Loop thread.
class OutboxReader final : private PayloadOwner {
 public:
  Status map(FileDescriptor fd);
  // The payload at `place`, which may be read until its lease ends. Null if `length` bytes cannot
  // be there.
  const std::byte* payload(uint32_t place, uint32_t length) const;
  Lease lease(uint32_t place) { return Lease(*this, place); }
  SharedBoard board() const;

 private:
  void give_back(uint32_t place) override;

  std::shared_ptr<const SharedMemory> memory_;
};

}  // namespace perseus
