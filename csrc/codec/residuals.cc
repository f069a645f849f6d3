#include "codec/residuals.h"

#include <cmath>
#include <limits>
#include <utility>

namespace perseus {

Residuals::Parts Residuals::of(const Tensor& tensor) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(tensor.name);
  if (found == entries_.end()) found = entries_.emplace(tensor.name, Entry()).first;
  Entry& entry = found->second;
  if (!entry.is_open) {
    if (entry.now.size() != tensor.elements) {
      entry = Entry();
      entry.now.resize(tensor.elements);
    }
    entry.is_open = true;
    entry.outlives_world = tensor.outlives_world;
    entry.last_world = world_;
    is_used_ = true;
    entry.is_first = entry.commit != commits_;
    entry.commit = commits_;
    entry.swap_with_last();
    entry.now.resize(tensor.elements);
  }
  return {entry.is_first ? entry.committed : entry.before, entry.now};
}

void Residuals::operation_ended(std::string_view name, bool is_ok) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found != entries_.end()) found->second.close(is_ok);
}

void Residuals::Entry::close(bool is_ok) {
  if (!std::exchange(is_open, false)) return;
  if (!is_ok) {
    swap_with_last();
    if (is_first) commit = 0;
  }
  if (std::exchange(is_undone, false)) restore(commit);
}

void Residuals::Entry::restore(uint64_t last_commit) {
  if (last_commit == 0 || commit != last_commit) return;
  if (is_open) {
    is_undone = true;
    return;
  }
  now.swap(committed);
  commit = 0;
}

void Residuals::commit() {
  std::lock_guard lock(mutex_);
  ++commits_;
}

void Residuals::restore() {
  std::lock_guard lock(mutex_);
  for (auto& [name, entry] : entries_) entry.restore(commits_);
}

void Residuals::forget() {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& each) { return !each.second.is_open; });
}

void Residuals::world_ended() {
  constexpr uint64_t kWorlds = 2;
  std::lock_guard lock(mutex_);
  for (auto& [name, entry] : entries_) entry.close(false);
  std::erase_if(entries_, [](const auto& each) { return !each.second.outlives_world; });
  if (!std::exchange(is_used_, false)) return;
  std::erase_if(entries_,
                [&](const auto& each) { return each.second.last_world + kWorlds <= world_; });
  ++world_;
}

size_t Residuals::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void Residuals::after_fork_in_child() {
  entries_.clear();
  mutex_.unlock();
}

void add_residual(float* gradient, const float* residual, size_t elements) {
  for (size_t i = 0; i < elements; ++i) gradient[i] += residual[i];
}

void keep_residual(float* residual, const float* gradient, const float* decoded, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    const float lost = gradient[i] - decoded[i];
    residual[i] = std::fabs(lost) <= std::numeric_limits<float>::max() ? lost : 0.0f;
  }
}

}  // namespace perseus
