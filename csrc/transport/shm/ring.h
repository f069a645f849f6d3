// A one-way queue of frames, without locks, in memory shared by two processes: one produces, the
// other consumes. Each frame is contiguous, behind a header padded to a cache line, so that the
// consumer copies or reduces straight out of the ring. Alternatively only the header is in the
// ring, and says where in the producer's outbox the payload is.
//
// Positions count bytes since the beginning and never wrap around in 64 bits. Neither side trusts
// the other's: a position beyond the ring's bounds is reported as damage.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

namespace perseus {

// Lies in the shared memory, zeroed. Each writer has a cache line of its own, two lines apart,
// since processors fetch lines in pairs.
struct RingControl {
  alignas(128) std::atomic<uint64_t> produced;  // written by the producer
  std::atomic<uint32_t> producer_wants_bell;    // set by the producer when it waits for room
  alignas(128) std::atomic<uint64_t> consumed;  // written by the consumer
  std::atomic<uint32_t> consumer_wants_bell;    // set by the consumer when it is about to sleep
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 256);

constexpr uint64_t kRingBytes = 1 << 20;
constexpr uint64_t kRingSlotHeader = 64;
constexpr uint32_t kInline = 0;
// The largest frame in a ring. Several fit, so that one is filled while another is drained.
constexpr uint64_t kMaxRingFrame = 128 << 10;

class RingProducer {
 public:
  void attach(RingControl* control, std::byte* data) {
    control_ = control;
    data_ = data;
  }

  // Returns a place for a frame of up to kMaxRingFrame bytes, or null if the ring is full.
  std::byte* reserve();
  // Fills the place with the frame and publishes it. If it returns true, the consumer's doorbell
  // must be rung. `where` is the payload's place in the outbox, or kInline.
  bool commit(std::byte* place, const Frame& frame, uint32_t where = kInline);
  // Asks the consumer to ring the doorbell when there is room; returns true if there is already.
  bool wait_for_room();

 private:
  bool has_room();

  RingControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t produced_ = 0;
  uint64_t consumed_ = 0;  // as last seen
};

class RingConsumer {
 public:
  enum class Outcome { kFrame, kEmpty, kDamaged };

  void attach(RingControl* control, std::byte* data) {
    control_ = control;
    data_ = data;
  }

  // The oldest frame: a copy of its header and, if `where` is kInline, its bytes in place.
  Outcome front(FrameHeader& header, uint32_t& where, const std::byte*& bytes);
  // Frees the frame's room. If it returns true, the producer's doorbell must be rung.
  bool pop();
  // Asks the producer to ring the doorbell when a frame comes; returns true if there is one
  // already.
  bool wait_for_frame();
  void awake() { control_->consumer_wants_bell.store(0, std::memory_order_relaxed); }

 private:
  RingControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t consumed_ = 0;
  uint64_t produced_ = 0;     // as last seen
  uint64_t front_bytes_ = 0;  // that the frame at the front takes up
};

}  // namespace perseus
