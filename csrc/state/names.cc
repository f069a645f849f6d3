#include "state/names.h"

#include <string>

namespace perseus {

int32_t Names::id_of(int32_t process_set, OperationKind kind, std::string_view name) {
  const std::string set = std::to_string(process_set) + '/';
  const std::string full = set + operation_key(kind, name);
  std::lock_guard lock(mutex_);
  if (const auto place = ids_.find(full); place != ids_.end()) return place->second;
  auto* const text = static_cast<char*>(memory_.allocate(full.size(), alignof(char)));
  const std::string_view kept(text, full.copy(text, full.size()));
  const auto id = static_cast<int32_t>(slots_.size());
  slots_.push_back({{process_set, kind, kept.substr(set.size())}, false});
  ids_.emplace(kept, id);
  return id;
}

Result<const Names::Entry*> Names::find(int32_t id) const {
  std::lock_guard lock(mutex_);
  if (id < 0 || static_cast<size_t>(id) >= slots_.size()) {
    return Status::invalid_argument("no operation is registered under id " + std::to_string(id));
  }
  return &slots_[id].entry;
}

bool Names::take(int32_t id) {
  std::lock_guard lock(mutex_);
  return !std::exchange(slots_[id].in_flight, true);
}

void Names::give_back(int32_t id) {
  std::lock_guard lock(mutex_);
  slots_[id].in_flight = false;
}

bool Names::is_in_flight(int32_t id) const {
  std::lock_guard lock(mutex_);
  return slots_[id].in_flight;
}

void Names::after_fork_in_child() {
  for (Slot& slot : slots_) slot.in_flight = false;
  mutex_.unlock();
}

}  // namespace perseus
