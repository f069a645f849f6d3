#include "state/names.h"

#include <memory>
#include <string>

#include "base/text_hash.h"

namespace perseus {

int32_t Names::id_of(int32_t process_set, OperationKind kind, std::string_view name) {
  const std::string set = std::to_string(process_set) + '/';
  const std::string full = set + operation_key(kind, name);
  std::lock_guard lock(mutex_);
  if (const auto place = ids_.find(full); place != ids_.end()) return place->second;
  auto* const text = static_cast<char*>(memory_.allocate(full.size(), alignof(char)));
  const std::string_view kept(text, full.copy(text, full.size()));
  const int32_t id = slot_count_.load(std::memory_order_relaxed);
  const int block = block_of(static_cast<uint32_t>(id));
  if (blocks_[block] == nullptr) make_block(block);
  const std::string_view key = kept.substr(set.size());
  slot(id).entry = {process_set, kind, key, text_hash(key)};
  ids_.emplace(kept, id);
  slot_count_.store(id + 1, std::memory_order_release);
  return id;
}

void Names::make_block(int block) {
  const size_t slots = size_t{kFirstBlockSlots} << block;
  blocks_[block] = static_cast<Slot*>(memory_.allocate(slots * sizeof(Slot), alignof(Slot)));
  std::uninitialized_default_construct_n(blocks_[block], slots);
}

Result<const Names::Entry*> Names::find(int32_t id) const {
  if (id < 0 || id >= slot_count_.load(std::memory_order_acquire)) {
    return Status::invalid_argument("no operation is registered under id " + std::to_string(id));
  }
  return &slot(id).entry;
}

bool Names::take(int32_t id) {
  if (slot(id).in_flight.exchange(true, std::memory_order_acq_rel)) return false;
  count_use(id);
  return true;
}

uint32_t Names::uses(int32_t id) const { return slot(id).uses.load(std::memory_order_relaxed); }

void Names::count_use(int32_t id) { slot(id).uses.fetch_add(1, std::memory_order_relaxed); }

void Names::reset_uses() {
  const int32_t count = slot_count_.load(std::memory_order_acquire);
  for (int32_t id = 0; id < count; ++id) slot(id).uses.store(0, std::memory_order_relaxed);
}

void Names::give_back(int32_t id) { slot(id).in_flight.store(false, std::memory_order_release); }

bool Names::is_in_flight(int32_t id) const {
  return slot(id).in_flight.load(std::memory_order_acquire);
}

void Names::after_fork_in_child() {
  for (int32_t id = 0; id < slot_count_.load(std::memory_order_relaxed); ++id) give_back(id);
  mutex_.unlock();
}

}  // namespace perseus
