// The order in which a process set's shards are launched on GPUs. All ranks must launch collectives
// in the same order. Otherwise two ranks may each wait in a collective that the other has not
// launched. So each agreement settles the order of the next launches, from what all ranks know at
// that point: which shards are ready, and which earlier launches have ended on all ranks. More
// urgent shards overtake those that still wait. The credit limits the bytes under way.
//
// Launch number n runs on lane n % lanes. It may have two halves of one or more collectives each:
// an upper one (reduce inside hosts, exchange between them) and a lower one (distribute inside
// hosts). The lower half is launched after the upper halves of the launches that follow on the
// other lanes, so that upper and lower halves overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace perseus {

// A shard as the order sees it; the owner embeds it. One thread.
struct Launch {
  int32_t urgency = 0;  // its priority
  uint64_t size = 0;    // bytes
  bool has_halves = false;

  // Set by the order. The position among all launches of the set, once that is settled.
  uint64_t number = 0;
  uint64_t age = 0;  // for the order alone: the position in the sequence of add() calls
};

// A turn to be launched: the whole launch or, if it has halves, one of them.
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

  // Launches must come in the order of agreement, and live until they have ended or been cancelled.
  void add(Launch* launch);
  // Call after each agreement. `ended`: the launches with numbers below this have ended on all
  // ranks. Returns the turns that come next. Valid until the next call.
  std::span<const LaunchTurn> settle(uint64_t ended);
  // A launch that was settled has ended on this rank.
  void end(const Launch& launch);

  // How many launches have ended here, counted up to the first that has not.
  uint64_t ended_here() const { return ended_here_; }
  // Returns whether some launches wait for others to end.
  bool has_waiting() const { return !waiting_.empty(); }
  // Removes all launches that have not been settled, and returns them.
  std::vector<Launch*> cancel();

 private:
  static bool is_later(const Launch* a, const Launch* b);

  // Settles the lower halves of the launches with numbers below this.
  void settle_lower_halves(uint64_t before);

  const uint64_t credit_bytes_;
  const uint64_t lanes_;
  std::vector<Launch*> waiting_;  // heap by is_later
  uint64_t next_age_ = 0;
  uint64_t next_number_ = 0;
  std::vector<LaunchTurn> settled_;    // by the last settle()
  std::vector<Launch*> lower_halves_;  // launches of which only the upper half is settled

  // The launches that are settled and not known to have ended on all ranks: from number ended_ on.
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
