#include "engine/engine_scope.h"

#include <atomic>

namespace perseus {
namespace {

// Engines that the thread runs: one may wait inside a callback of another.
thread_local int scopes = 0;

std::atomic<bool> forked_by_callback{false};

}  // namespace

EngineScope::EngineScope() { ++scopes; }
EngineScope::~EngineScope() { --scopes; }

bool EngineScope::is_here() { return scopes > 0; }

void EngineScope::after_fork_in_child() {
  if (is_here()) forked_by_callback.store(true, std::memory_order_relaxed);
}

bool EngineScope::is_child_of_callback() {
  return forked_by_callback.load(std::memory_order_relaxed);
}

}  // namespace perseus
