// In which order a process set's shards are launched on GPUs. Collectives that several ranks' GPUs
// run at a time must be launched in one order on all of them, else each may wait for what another
// has not launched. So the order is settled when ranks agree, from what they then know alike: what
// is ready, and how much of what was launched before has ended on all of them. More urgent shards
// overtake those that still wait; bytes under way are bounded by the credit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perseus {

// What the order knows of a shard; the owner embeds it. One thread.
struct Launch {
  int32_t urgency = 0;  // its priority
  uint64_t size = 0;    // bytes

  // The order's own: the place among all launches of the set, once it is settled.
  uint64_t number = 0;
  uint64_t age = 0;
};

class LaunchOrder {
 public:
  explicit LaunchOrder(uint64_t credit_bytes) : credit_bytes_(credit_bytes) {}

  // In the order of agreement. Must live until it has ended, or been cancelled.
  void add(Launch* launch);
  // After an agreement, by which `ended` launches, in the order of their numbers, had ended on all
  // ranks: those whose turn it is next. Good until the next call.
  std::span<Launch* const> settle(uint64_t ended);
  // One that was settled has ended here.
  void end(const Launch& launch);

  // How many have ended here without a gap before them.
  uint64_t ended_here() const { return ended_here_; }
  // Whether some wait for others to end.
  bool has_waiting() const { return !waiting_.empty(); }
  // Takes back all that have not been settled.
  std::vector<Launch*> cancel();

 private:
  static bool is_later(const Launch* a, const Launch* b);

  const uint64_t credit_bytes_;
  std::vector<Launch*> waiting_;  // heap by is_later
  uint64_t next_age_ = 0;
  uint64_t next_number_ = 0;
  std::vector<Launch*> settled_;  // by the last call

  // Settled, and not known to have ended on all ranks: from number ended_ on.
  struct UnderWay {
    uint64_t size = 0;
    bool has_ended_here = false;
  };
  std::vector<UnderWay> under_way_;
  uint64_t bytes_under_way_ = 0;
  uint64_t ended_ = 0;
  uint64_t ended_here_ = 0;
};

}  // namespace perseus
