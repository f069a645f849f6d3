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

  // Refuses a rank that is here already by another process, or that gives another size.
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
  // The round has timed out. Tells all members which ranks are missing.
  void time_out(double seconds);
  // Another process has ended: completes or fails the round if that settles it.
  void note_ended();

 private:
  uint32_t launched(uint32_t rank) const { return ranks_.empty() ? rank : ranks_[rank]; }
  void end_round_if_all_are_here();
  void end_round();
  void fail(Status why);
  // "ranks 2, 5 and 7 on h1 and h3", by launched rank.
  std::string name(const std::vector<uint32_t>& ranks) const;

  const uint32_t size_;
  const std::vector<uint32_t> ranks_;  // as launched; empty: rank r was launched as r
  const LaunchedRanks& launched_;
  MetWorlds& met_;
  std::vector<Member*> members_;  // by rank; null: not here
  std::vector<std::string> callers_;
  std::vector<std::optional<std::string>> contributions_;
  uint32_t contributed_ = 0;
  uint32_t round_ = 0;
  Status left_;     // set once a member has left; no further round can succeed then
  Status failure_;  // sent to every member
};

}  // namespace perseus::rendezvous
