// The rendezvous server's state of one generation of one world: which ranks have come, what they
// have contributed, which are missing. Server's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/met_worlds.h"
#include "bootstrap/rendezvous_protocol.h"

namespace perseus::rendezvous {

// The launcher's knowledge of its ranks.
struct LaunchedRanks {
  uint32_t least = 1;                     // how many survivors are enough to go on
  std::vector<std::string> hosts;         // by rank; empty: not known
  std::map<uint32_t, std::string> ended;  // ranks that have, and how: "exited with code 1"
};

class World {
 public:
  // A rank in the world; implemented by the server's connections.
  class Member {
   public:
    virtual void tell(const std::string& payload) = 0;
    virtual std::string where() const = 0;
    // Its rank has called once more, on another connection. It must not leave the world.
    virtual void replaced() = 0;

   protected:
    ~Member() = default;
  };

  // `launched` and `met` outlive the world. When its ranks have met, that is added to `met`.
  World(const Hello& first, const LaunchedRanks& launched, MetWorlds& met);

  // Refuses a rank that is here already by another process, that gives another size, or that the
  // survivors have gone on without.
  Status join(const Hello& hello, Member* member);
  // A member's connection has ended; `how` says why, for the others: "rank 1 (ADDRESS) HOW".
  void leave(uint32_t rank, const std::string& how);
  bool is_empty() const;
  // The launched ranks that are here.
  std::vector<uint32_t> members() const;
  // Returns whether a round has completed.
  bool has_met() const { return round_ > 0; }
  // Why those that came have failed to meet; Ok if they have met, or may still do so.
  Status why_not_met() const { return has_met() ? Status::ok() : failure_; }

  void contribute(uint32_t rank, Contribution contribution);
  // Returns whether some ranks have contributed to the current round and wait for others.
  bool is_waiting() const { return contributed_ > 0 && failure_.is_ok(); }
  // The round has timed out. Either tells all members which ranks are missing or, if enough
  // survivors have come, lets them go on and returns the launched ranks that are left out.
  std::vector<uint32_t> time_out(double seconds);
  // Another process has ended: completes or fails the round if that settles it.
  void note_ended();

 private:
  // Returns whether this is the first round of a world of survivors.
  bool is_finding_survivors() const { return survivors_ && round_ == 0; }
  uint32_t launched(uint32_t rank) const { return ranks_.empty() ? rank : ranks_[rank]; }
  // Returns whether the rank has contributed, or never will.
  bool is_accounted_for(uint32_t rank) const;
  Status came_too_late(uint32_t rank) const;
  void end_round_if_all_are_here();
  void end_round();
  void fail(Status why);
  // "ranks 2, 5 and 7 on h1 and h3", by launched rank.
  std::string name(const std::vector<uint32_t>& ranks) const;

  const uint32_t size_;
  const bool survivors_;
  const std::vector<uint32_t> ranks_;  // as launched; empty: rank r was launched as r
  const LaunchedRanks& launched_;
  MetWorlds& met_;
  std::vector<bool> is_included_;  // by rank; all of them until the survivors are known
  std::vector<Member*> members_;   // by rank; null: not here
  std::vector<std::string> callers_;
  std::vector<std::optional<std::string>> contributions_;
  uint32_t contributed_ = 0;
  uint32_t round_ = 0;
  Status left_;     // set once a member has left; no further round can succeed then
  Status failure_;  // sent to every member
};

}  // namespace perseus::rendezvous
