// Counts of what this process has done so far. Any thread: counting is one relaxed addition.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace perseus {

class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// The counters of counters_table.inc that the engine counts.
struct Counters {
#define COUNTER(name, help) Counter name;
#define MESH_COUNTER(name, help)
#include "observe/counters_table.inc"
#undef COUNTER
#undef MESH_COUNTER
};

// Visits every one of them in the table's order.
void visit_counters(const Counters& counters,
                    const std::function<void(const char* name, uint64_t value)>& visit);

}  // namespace perseus
