// A one-way queue of frames, without locks, in memory shared by two processes: one produces, the
// other consumes. There are kRingSlots slots, used in turns, so that few cache lines go back and
// forth however long the queue lives. A slot holds a frame's header and, if it is short, its
// payload. A longer payload is contiguous in the ring's data, so that the consumer copies or
// reduces straight out of it, or lies in the producer's outbox.
//
// A slot's number tells the consumer that the frame is there: it looks at the line that it is about
// to read anyway. Slots and bytes are counted since the beginning, and never wrap around in 64
// bits. Neither side trusts the other's counts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

namespace perseus {

constexpr uint64_t kRingSlots = 256;
constexpr uint64_t kRingDataBytes = 1 << 20;
constexpr uint32_t kInline = 0;
// The largest frame in a ring. Several fit, so that one is filled while another is drained.
constexpr uint64_t kMaxRingFrame = 128 << 10;

struct RingSlot {
  static constexpr uint64_t kPayload = 192;

  std::atomic<uint64_t> number;  // how many frames there have been once this one has come
  FrameHeader frame;
  uint32_t where;  // the payload's place in the outbox, or kInline
  alignas(64) std::byte payload[kPayload];
};
static_assert(sizeof(RingSlot) == 256);

// Lies in the shared memory, zeroed and aligned to cache lines. What is written often has lines of
// its own, two apart, since processors fetch lines in pairs.
struct RingMemory {
  alignas(128) std::atomic<uint32_t> producer_wants_bell;  // set when the producer waits for room
  alignas(128) std::atomic<uint32_t> consumer_wants_bell;  // set when it is about to sleep
  alignas(128) std::atomic<uint64_t> consumed;             // frames; written by the consumer
  alignas(128) std::array<RingSlot, kRingSlots> slots;
  alignas(128) std::array<std::byte, kRingDataBytes> data;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class RingProducer {
 public:
  void attach(RingMemory& memory) { memory_ = &memory; }

  // Returns whether a frame of up to kMaxRingFrame bytes fits.
  bool has_room();
  // Publishes the frame, for which there must be room. If it returns true, the consumer's doorbell
  // must be rung. `where` is the payload's place in the outbox, or kInline.
  bool commit(const Frame& frame, uint32_t where = kInline);
  // Asks the consumer to ring the doorbell when there is room; returns true if there is already.
  bool wait_for_room();

 private:
  bool seems_to_have_room() const;
  void note_consumed(uint64_t frames);

  RingMemory* memory_ = nullptr;
  uint64_t produced_ = 0;                         // frames
  uint64_t data_produced_ = 0;                    // bytes
  uint64_t consumed_ = 0, data_consumed_ = 0;     // as last seen
  std::array<uint64_t, kRingSlots> data_ends_{};  // data_produced_ after the frame in each slot
};

class RingConsumer {
 public:
  enum class Outcome { kFrame, kEmpty, kDamaged };

  void attach(RingMemory& memory) { memory_ = &memory; }

  // The oldest frame: a copy of its header and, if `where` is kInline, its bytes in place, aligned
  // to a cache line.
  Outcome front(FrameHeader& header, uint32_t& where, const std::byte*& bytes);
  // Frees the frame's room. If it returns true, the producer's doorbell must be rung.
  bool pop();
  // Asks the producer to ring the doorbell when a frame comes; returns true if there is one
  // already.
  bool wait_for_frame();
  void awake() { memory_->consumer_wants_bell.store(0, std::memory_order_relaxed); }

 private:
  RingSlot& front_slot() const { return memory_->slots[consumed_ % kRingSlots]; }

  RingMemory* memory_ = nullptr;
  uint64_t consumed_ = 0;       // frames
  uint64_t data_consumed_ = 0;  // bytes
  uint64_t front_end_ = 0;      // data_consumed_ once the frame at the front is popped
};

}  // namespace perseus
