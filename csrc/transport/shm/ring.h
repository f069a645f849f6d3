// A one-way queue of frames in memory shared by two processes: one produces, one consumes, neither
// locks. Frames lie in one piece, each behind a header padded to a cache line, so that the consumer
// copies or reduces straight out of the ring; or only the header does, and says where in the
// producer's outbox the payload is.
//
// Positions count bytes since the beginning and never wrap in 64 bits. Neither side trusts the
// other's: what lies beyond the ring's bounds is reported as damage.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

namespace perseus {

// Lies in the shared memory, zeroed. One cache line a writer, two apart because processors fetch
// lines in pairs.
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
// Frames in a ring: several fit, so that one is filled while another is drained.
constexpr uint64_t kMaxRingFrame = 128 << 10;

class RingProducer {
 public:
  void attach(RingControl* control, std::byte* data) {
    control_ = control;
    data_ = data;
  }

  // A place for a frame of up to kMaxRingFrame bytes, or null if the ring is full now.
  std::byte* reserve();
  // Fills the place with the frame and shows it to the consumer, who must be rung if true. `where`
  // is the place of the payload elsewhere, or kInline.
  bool commit(std::byte* place, const Frame& frame, uint32_t where = kInline);
  // Asks for a ring when room is made; true if there is room already.
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

  // The oldest frame: a copy of its header, and its bytes in place if `where` is kInline.
  Outcome front(FrameHeader& header, uint32_t& where, const std::byte*& bytes);
  // Gives the frame's room back; the producer must be rung if true.
  bool pop();
  // Asks for a ring when a frame comes; true if there is one already.
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
