// Counts of what this process has done so far. Any thread: counting is one relaxed addition.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace perseus {

// COUNTER(name, meaning). Bytes are those of the user's elements unless said otherwise.
#define PERSEUS_COUNTERS(COUNTER)                                                     \
  COUNTER(registrations, "names registered")                                          \
  COUNTER(operations_submitted, "operations handed over")                             \
  COUNTER(operations_completed, "operations that ended well")                         \
  COUNTER(operations_failed, "operations that ended in an error")                     \
  COUNTER(agreements, "agreements concluded")                                         \
  COUNTER(agreement_messages_sent, "messages of agreements to other ranks")           \
  COUNTER(agreement_bytes_sent, "bytes of those")                                     \
  COUNTER(agreement_messages_received, "messages of agreements from other ranks")     \
  COUNTER(agreement_bytes_received, "bytes of those")                                 \
  COUNTER(descriptions_sent, "operations described in full, as their names were new") \
  COUNTER(merges, "pieces of work that joined several tensors")                       \
  COUNTER(shards, "shards that tensors and merges were cut into")                     \
  COUNTER(bytes_reduced, "bytes through allreduce and reduce-scatter")                \
  COUNTER(bytes_broadcast, "bytes through broadcast")                                 \
  COUNTER(bytes_gathered, "bytes of results of allgather")                            \
  COUNTER(bytes_exchanged, "bytes of results of alltoall")                            \
  COUNTER(stall_warnings, "tensors reported as stalled")                              \
  COUNTER(non_finite_reductions, "reductions in which a NaN or infinity was found")

class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Counters {
#define PERSEUS_DECLARE_COUNTER(name, meaning) Counter name;
  PERSEUS_COUNTERS(PERSEUS_DECLARE_COUNTER)
#undef PERSEUS_DECLARE_COUNTER
};

// Visits every counter in the order above.
void visit_counters(
    const Counters& counters,
    const std::function<void(const char* name, const char* meaning, uint64_t value)>& visit);

}  // namespace perseus
