#include "transport/shm/ring.h"

#include <cstring>

namespace perseus {
namespace {

static_assert(kRingDataBytes >= 4 * kMaxRingFrame);

constexpr bool is_in_slot(uint64_t length) { return length <= RingSlot::kPayload; }

// A payload starts at `position` or, if the largest frame would not fit before the end of the data,
// at its beginning. Both sides compute this alike, so the gap needs no mark.
constexpr uint64_t place_from(uint64_t position) {
  const uint64_t left = kRingDataBytes - position % kRingDataBytes;
  return left < kMaxRingFrame ? position + left : position;
}
constexpr uint64_t end_of(uint64_t place, uint64_t length) {
  return place + (length + 63) / 64 * 64;
}

}  // namespace

bool RingProducer::seems_to_have_room() const {
  return produced_ - consumed_ < kRingSlots &&
         place_from(data_produced_) + kMaxRingFrame - data_consumed_ <= kRingDataBytes;
}

void RingProducer::note_consumed(uint64_t frames) {
  if (frames <= consumed_ || frames > produced_) return;
  consumed_ = frames;
  data_consumed_ = data_ends_[(frames - 1) % kRingSlots];
}

bool RingProducer::has_room() {
  if (seems_to_have_room()) return true;
  note_consumed(memory_->consumed.load(std::memory_order_acquire));
  return seems_to_have_room();
}

bool RingProducer::commit(const Frame& frame, uint32_t where) {
  RingSlot& slot = memory_->slots[produced_ % kRingSlots];
  slot.frame = frame.header;
  slot.where = where;
  const uint64_t length = frame.header.length;
  if (where == kInline && length != 0) {
    std::byte* place = slot.payload;
    if (!is_in_slot(length)) {
      const uint64_t start = place_from(data_produced_);
      place = memory_->data.data() + start % kRingDataBytes;
      data_produced_ = end_of(start, length);
    }
    std::memcpy(place, frame.data, length);
  }
  data_ends_[produced_ % kRingSlots] = data_produced_;
  produced_ += 1;
  // Sequentially consistent with the consumer's request for a doorbell and its last check, so one
  // of the two sides sees the other's store.
  slot.number.store(produced_, std::memory_order_seq_cst);
  // The consumer has read the next slot the last time around. Its lines come back meanwhile.
  RingSlot& next = memory_->slots[produced_ % kRingSlots];
  __builtin_prefetch(&next, 1);
  __builtin_prefetch(next.payload, 1);
  return memory_->consumer_wants_bell.load(std::memory_order_seq_cst) != 0 &&
         memory_->consumer_wants_bell.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingProducer::wait_for_room() {
  memory_->producer_wants_bell.store(1, std::memory_order_seq_cst);
  note_consumed(memory_->consumed.load(std::memory_order_seq_cst));
  return seems_to_have_room();
}

RingConsumer::Outcome RingConsumer::front(FrameHeader& header, uint32_t& where,
                                          const std::byte*& bytes) {
  const RingSlot& slot = front_slot();
  if (slot.number.load(std::memory_order_acquire) != consumed_ + 1) return Outcome::kEmpty;
  header = slot.frame;
  where = slot.where;
  if (header.length > kMaxRingFrame) return Outcome::kDamaged;
  front_end_ = data_consumed_;
  bytes = slot.payload;
  if (where == kInline && !is_in_slot(header.length)) {
    const uint64_t start = place_from(data_consumed_);
    bytes = memory_->data.data() + start % kRingDataBytes;
    front_end_ = end_of(start, header.length);
  }
  return Outcome::kFrame;
}

bool RingConsumer::pop() {
  consumed_ += 1;
  data_consumed_ = front_end_;
  memory_->consumed.store(consumed_, std::memory_order_seq_cst);
  return memory_->producer_wants_bell.load(std::memory_order_seq_cst) != 0 &&
         memory_->producer_wants_bell.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingConsumer::wait_for_frame() {
  memory_->consumer_wants_bell.store(1, std::memory_order_seq_cst);
  return front_slot().number.load(std::memory_order_seq_cst) == consumed_ + 1;
}

}  // namespace perseus
