// In which order a process set's shards are launched on GPUs. Collectives that several ranks' GPUs
// run at a time must be launched in one order on all of them, else each may wait for what another
// has not launched. So the order is settled when ranks agree, from what they then know alike: what
// is ready, and how much of what was launched before has ended on all of them. More urgent shards
// overtake those that still wait; bytes under way are bounded by the credit.
//
// A launch on lane number % lanes may come in two halves, each a collective or more: an upper one
// (reduce inside hosts, exchange between them) and a lower one (spread inside hosts). The lower
// half of one is launched after the upper halves of those that follow it on the other lanes, so
// that the two overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perseus {

// What the order knows of a shard; the owner embeds it. One thread.
struct Launch {
  int32_t urgency = 0;  // its priority
  uint64_t size = 0;    // bytes
  bool has_halves = false;

  // The order's own: the place among all launches of the set, once it is settled.
  uint64_t number = 0;
  uint64_t age = 0;
};

// What is launched next: all of it or, if it has halves, one of them.
struct LaunchTurn {
  Launch* launch;
  bool is_lower = false;

  bool operator==(const LaunchTurn&) const = default;
  bool is_last() const { return is_lower || !launch->has_halves; }
};

class LaunchOrder {
 public:
  LaunchOrder(uint64_t credit_bytes, int lanes)
      : credit_bytes_(credit_bytes), lanes_(static_cast<uint64_t>(lanes)) {}

  // In the order of agreement. Must live until it has ended, or been cancelled.
  void add(Launch* launch);
  // After an agreement, by which `ended` launches, in the order of their numbers, had ended on all
  // ranks: the turns that come next. Good until the next call.
  std::span<const LaunchTurn> settle(uint64_t ended);
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

  // Adds the lower halves of those that were given lanes before this number.
  void settle_lower_halves(uint64_t before);

  const uint64_t credit_bytes_;
  const uint64_t lanes_;
  std::vector<Launch*> waiting_;  // heap by is_later
  uint64_t next_age_ = 0;
  uint64_t next_number_ = 0;
  std::vector<LaunchTurn> settled_;    // by the last call
  std::vector<Launch*> lower_halves_;  // of these, not settled yet

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
