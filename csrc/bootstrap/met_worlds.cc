#include "bootstrap/met_worlds.h"

#include <algorithm>
#include <utility>

#include "base/world_key.h"

namespace perseus::rendezvous {
namespace {

// Enough for every rank to be in a world of its own, in jobs whose ranks all meet again and again.
constexpr size_t kMost = 4096;

}  // namespace

void MetWorlds::add(std::vector<int> ranks, std::span<const std::string> introductions) {
  World world{WorldKey(secret_, introductions).name(), std::move(ranks)};
  std::lock_guard lock(mutex_);
  if (latest_.size() == kMost) latest_.pop_front();
  latest_.push_back(std::move(world));
}

bool MetWorlds::has(const std::string& name, const std::vector<int>& ranks) const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(
      latest_, [&](const World& world) { return world.name == name && world.ranks == ranks; });
}

}  // namespace perseus::rendezvous
