// The messages under way to this rank on one link, by tag: an open-addressed hash table with linear
// probing. It never shrinks, so the steady path allocates nothing. Loop thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/link.h"

namespace perseus {

// A message that has a posted receive, or has begun to arrive, or both.
struct IncomingMessage {
  static constexpr uint32_t kNone = ~0u;

  Tag tag;
  Transfer* posted = nullptr;
  uint64_t size = 0;            // known once `begun`
  uint64_t claimed = 0;         // bytes that have arrived or are being read into place
  uint64_t got = 0;             // bytes that have arrived
  uint32_t first_held = kNone;  // frames that came before the receive was posted
  uint32_t last_held = kNone;
  int channel = 0;  // by which the first frame came
  bool begun = false;
  bool used = false;
};

class TagTable {
 public:
  TagTable() : slots_(kInitialCapacity) {}

  IncomingMessage* find(const Tag& tag) {
    for (size_t i = home(tag);; i = following(i)) {
      if (!slots_[i].used) return nullptr;
      if (slots_[i].tag == tag) return &slots_[i];
    }
  }

  // The reference is valid until the next call that inserts or erases.
  IncomingMessage& find_or_insert(const Tag& tag) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    size_t i = home(tag);
    while (slots_[i].used) {
      if (slots_[i].tag == tag) return slots_[i];
      i = following(i);
    }
    slots_[i] = IncomingMessage{};
    slots_[i].tag = tag;
    slots_[i].used = true;
    ++count_;
    return slots_[i];
  }

  // Closes the gap by moving later entries back, so that no tombstones accumulate.
  void erase(IncomingMessage& message) {
    size_t gap = static_cast<size_t>(&message - slots_.data());
    --count_;
    for (size_t i = following(gap); slots_[i].used; i = following(i)) {
      const size_t distance = (i - home(slots_[i].tag)) & (slots_.size() - 1);
      if (distance < ((i - gap) & (slots_.size() - 1))) continue;
      slots_[gap] = slots_[i];
      gap = i;
    }
    slots_[gap].used = false;
  }

  // Calls `visit(message)` for each message; it must not insert or erase.
  template <typename Visit>
  void for_each(Visit visit) {
    for (IncomingMessage& message : slots_) {
      if (message.used) visit(message);
    }
  }

  template <typename Predicate>
  bool any_of(Predicate holds) const {
    return std::ranges::any_of(
        slots_, [&](const IncomingMessage& message) { return message.used && holds(message); });
  }

  void clear() {
    for (IncomingMessage& message : slots_) message.used = false;
    count_ = 0;
  }

  size_t size() const { return count_; }

 private:
  static constexpr size_t kInitialCapacity = 64;

  size_t home(const Tag& tag) const {
    uint64_t hash = tag.operation * 0x9e3779b97f4a7c15u;
    hash ^= (uint64_t{tag.shard} << 32 | tag.step) * 0xc2b2ae3d27d4eb4fu;
    hash ^= hash >> 32;
    return static_cast<size_t>(hash * 0x9e3779b97f4a7c15u >> 32) & (slots_.size() - 1);
  }
  size_t following(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void grow() {
    std::vector<IncomingMessage> old(slots_.size() * 2);
    old.swap(slots_);
    count_ = 0;
    for (IncomingMessage& message : old) {
      if (message.used) find_or_insert(message.tag) = message;
    }
  }

  std::vector<IncomingMessage> slots_;
  size_t count_ = 0;
};

}  // namespace perseus
