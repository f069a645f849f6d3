// Where a rank puts payloads for the ranks of its host: slots in memory that all of them may read.
// The rings carry only where a payload lies. So what goes to several peers is written once, and
// what a peer cannot use yet waits where it is instead of being copied away.
// Slots used lately are the first to be used again, as they are likely to be in the cache.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "transport/link.h"
#include "transport/shm/ring.h"
#include "transport/shm/shared_memory.h"

namespace perseus {

constexpr uint32_t kOutboxSlots = 32;

// Lies in the shared memory, zeroed.
struct OutboxControl {
  // Who may still read a slot: counted up by the writer, down by the readers.
  alignas(128) std::array<std::atomic<uint16_t>, kOutboxSlots> readers;
};
static_assert(std::atomic<uint16_t>::is_always_lock_free);

constexpr size_t kOutboxControlBytes = 4096;
// Room to place a payload within a page as suits it.
constexpr size_t kOutboxSlotBytes = kMaxRingFrame + 4096;
constexpr size_t kOutboxBytes = kOutboxControlBytes + kOutboxSlots * kOutboxSlotBytes;

// The writer's side. Loop thread.
class Outbox final : private SharedPayloadStore {
 public:
  // One more rank is going to read. All but this may be called only after it succeeded.
  Status open_for_peer();
  int fd() const { return memory_.fd(); }

  // Puts the frame's payload into a slot for one more reader, and gives its place, in lines of 64
  // bytes; kInline if all slots are in use. Finds the payload there already if it is shared and
  // another peer came first.
  uint32_t put(const Frame& frame);

 private:
  void release(uint32_t place) override;
  std::optional<uint32_t> take();

  SharedMemory memory_;
  OutboxControl* control_ = nullptr;
  uint32_t peers_ = 0;
  std::array<uint8_t, kOutboxSlots> slots_by_recency_{};  // slots, the last used first
};

// A peer's outbox. Loop thread.
class OutboxReader final : private PayloadOwner {
 public:
  Status map(FileDescriptor fd);
  // The payload at `place`, which is ours until the lease ends; null if `length` bytes cannot be
  // there.
  const std::byte* payload(uint32_t place, uint32_t length) const;
  Lease lease(uint32_t place) { return Lease(*this, place); }

 private:
  void give_back(uint32_t place) override;

  SharedMemory memory_;
};

}  // namespace perseus
