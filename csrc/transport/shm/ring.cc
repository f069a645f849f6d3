#include "transport/shm/ring.h"

#include <cstring>

namespace perseus {
namespace {

constexpr uint64_t kLargestSlot = kRingSlotHeader + kMaxRingFrame;
static_assert(kRingBytes >= 4 * kLargestSlot);

// At the beginning of each slot.
struct SlotHeader {
  FrameHeader frame;
  uint32_t where;
};
static_assert(sizeof(SlotHeader) <= kRingSlotHeader);

constexpr uint64_t slot_bytes(uint64_t length, uint32_t where) {
  return kRingSlotHeader + (where == kInline ? (length + 63) / 64 * 64 : 0);
}

// A frame starts at `position` or, if the largest frame would not fit before the ring's end, at its
// beginning. Both sides compute this alike, so the gap needs no mark.
constexpr uint64_t place_from(uint64_t position) {
  const uint64_t left = kRingBytes - position % kRingBytes;
  return left < kLargestSlot ? position + left : position;
}

}  // namespace

bool RingProducer::has_room() {
  return place_from(produced_) + kLargestSlot - consumed_ <= kRingBytes;
}

std::byte* RingProducer::reserve() {
  if (!has_room()) {
    consumed_ = control_->consumed.load(std::memory_order_acquire);
    if (!has_room()) return nullptr;
  }
  return data_ + place_from(produced_) % kRingBytes;
}

bool RingProducer::commit(std::byte* place, const Frame& frame, uint32_t where) {
  const SlotHeader slot{frame.header, where};
  std::memcpy(place, &slot, sizeof slot);
  if (where == kInline && frame.header.length != 0) {
    std::memcpy(place + kRingSlotHeader, frame.data, frame.header.length);
  }
  produced_ = place_from(produced_) + slot_bytes(frame.header.length, where);
  // Sequentially consistent with the consumer's request for a doorbell and its last check, so one
  // of the two sides sees the other's store.
  control_->produced.store(produced_, std::memory_order_seq_cst);
  return control_->consumer_wants_bell.load(std::memory_order_seq_cst) != 0 &&
         control_->consumer_wants_bell.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingProducer::wait_for_room() {
  control_->producer_wants_bell.store(1, std::memory_order_seq_cst);
  consumed_ = control_->consumed.load(std::memory_order_seq_cst);
  return has_room();
}

RingConsumer::Outcome RingConsumer::front(FrameHeader& header, uint32_t& where,
                                          const std::byte*& bytes) {
  if (consumed_ == produced_) {
    produced_ = control_->produced.load(std::memory_order_acquire);
    if (consumed_ == produced_) return Outcome::kEmpty;
  }
  const uint64_t start = place_from(consumed_);
  const std::byte* place = data_ + start % kRingBytes;
  SlotHeader slot;
  std::memcpy(&slot, place, sizeof slot);
  header = slot.frame;
  where = slot.where;
  const uint64_t end = start + slot_bytes(header.length, where);
  if (header.length > kMaxRingFrame || produced_ - consumed_ > kRingBytes || end > produced_) {
    return Outcome::kDamaged;
  }
  bytes = place + kRingSlotHeader;
  front_bytes_ = end - consumed_;
  return Outcome::kFrame;
}

bool RingConsumer::pop() {
  consumed_ += front_bytes_;
  control_->consumed.store(consumed_, std::memory_order_seq_cst);
  return control_->producer_wants_bell.load(std::memory_order_seq_cst) != 0 &&
         control_->producer_wants_bell.exchange(0, std::memory_order_relaxed) != 0;
}

bool RingConsumer::wait_for_frame() {
  control_->consumer_wants_bell.store(1, std::memory_order_seq_cst);
  produced_ = control_->produced.load(std::memory_order_seq_cst);
  return consumed_ != produced_;
}

}  // namespace perseus
