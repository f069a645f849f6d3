#include "transport/shm/outbox.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace perseus {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

// The most recently used free slots are used in turn, this many on a host: enough that a slot has
// left its reader's own cache when it is written again, few enough that all stay in the shared
// cache.
constexpr uint32_t kRotatedSlotsPerHost = 16;

// So many slots may be lost to ranks that have died.
constexpr int kMostWorn = kOutboxSlots / 4;

OutboxControl* control_of(const SharedMemory& memory) {
  return reinterpret_cast<OutboxControl*>(memory.data());
}

SharedBoard board_of(const std::shared_ptr<const SharedMemory>& memory) {
  if (memory == nullptr) return {};
  return {memory, memory->data() + kOutboxBoardBegin};
}

size_t begin_of(uint32_t slot) { return kOutboxControlBytes + slot * kOutboxSlotBytes; }

uint32_t slot_at(uint32_t place) {
  return static_cast<uint32_t>((place * kLine - kOutboxControlBytes) / kOutboxSlotBytes);
}

// The payload's offset in a slot. A processor assumes that a load depends on an earlier store if
// the lower 12 bits of their addresses are equal, so a copy should not write just behind the
// address that it is about to read. Half a page lies between the two here, and also when the reader
// copies the payload, since ranks' buffers are mostly laid out alike.
size_t offset_for(const std::byte* source) {
  return (reinterpret_cast<uintptr_t>(source) + kPage / 2) % kPage / kLine * kLine;
}

}  // namespace

Status Outbox::open_for_peer() {
  ++peers_;
  if (memory_) return Status::ok();
  Result<SharedMemory> memory = SharedMemory::create(kOutboxBytes);
  if (!memory.is_ok()) return memory.status();
  memory_ = std::make_shared<const SharedMemory>(std::move(memory).value());
  control_ = control_of(*memory_);
  std::iota(slots_by_recency_.begin(), slots_by_recency_.end(), uint8_t{0});
  return Status::ok();
}

SharedBoard Outbox::board() const { return board_of(memory_); }

bool Outbox::is_worn() const {
  if (control_ == nullptr) return false;
  return std::ranges::count_if(control_->readers, [](const auto& readers) {
           return readers.load(std::memory_order_acquire) != 0;
         }) > kMostWorn;
}

std::optional<uint32_t> Outbox::take() {
  uint8_t* taken = nullptr;
  uint32_t free = 0;
  const uint32_t rotated = std::max<uint32_t>(kRotatedSlotsPerHost / (peers_ + 1), 1);
  for (uint8_t& place : slots_by_recency_) {
    if (control_->readers[place].load(std::memory_order_acquire) != 0) continue;
    taken = &place;
    if (++free == rotated) break;
  }
  if (taken == nullptr) return {};
  const uint32_t slot = *taken;
  std::rotate(slots_by_recency_.begin(), taken, taken + 1);
  return slot;
}

uint32_t Outbox::put(const Frame& frame) {
  SharedPayload* shared = frame.transfer == nullptr ? nullptr : frame.transfer->shared;
  // A part of a message cannot be shared, since messages to other peers may be cut elsewhere.
  if (frame.header.length != frame.header.size) shared = nullptr;
  if (shared != nullptr && shared->is_stored()) {
    const uint32_t place = shared->place();
    control_->readers[slot_at(place)].fetch_add(1, std::memory_order_relaxed);
    shared->note_sent();
    return place;
  }
  const std::optional<uint32_t> slot = take();
  if (!slot) return kInline;
  const size_t begin = begin_of(*slot) + offset_for(frame.data);
  std::memcpy(memory_->data() + begin, frame.data, frame.header.length);
  const auto place = static_cast<uint32_t>(begin / kLine);
  const bool is_stored = shared != nullptr && shared->has_more_sends();
  control_->readers[*slot].store(is_stored ? 2 : 1, std::memory_order_relaxed);
  if (is_stored) shared->store(*this, place);
  if (shared != nullptr) shared->note_sent();
  return place;
}

void Outbox::release(uint32_t place) {
  control_->readers[slot_at(place)].fetch_sub(1, std::memory_order_relaxed);
}

Status OutboxReader::map(FileDescriptor fd) {
  Result<SharedMemory> memory = SharedMemory::map(std::move(fd), kOutboxBytes);
  if (!memory.is_ok()) return memory.status();
  memory_ = std::make_shared<const SharedMemory>(std::move(memory).value());
  return Status::ok();
}

SharedBoard OutboxReader::board() const { return board_of(memory_); }

const std::byte* OutboxReader::payload(uint32_t place, uint32_t length) const {
  const size_t begin = size_t{place} * kLine;
  if (begin < kOutboxControlBytes || begin + length > kOutboxBytes) return nullptr;
  return memory_->data() + begin;
}

void OutboxReader::give_back(uint32_t place) {
  control_of(*memory_)->readers[slot_at(place)].fetch_sub(1, std::memory_order_release);
}

}  // namespace perseus
