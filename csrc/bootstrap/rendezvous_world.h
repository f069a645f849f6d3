// The server's record of one generation of one world: who has come, what they gave, who is missing.
// The server's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/rendezvous_protocol.h"

namespace perseus::rendezvous {

// What the launcher says of its ranks.
struct LaunchedRanks {
  uint32_t least = 1;                     // survivors that are enough to go on
  std::vector<std::string> hosts;         // by rank; empty: not known
  std::map<uint32_t, std::string> ended;  // whose processes have, and how: "exited with code 1"
};

class World {
 public:
  // What a member is told; implemented by the server's connections.
  class Member {
   public:
    virtual void tell(const std::string& payload) = 0;
    virtual std::string where() const = 0;

   protected:
    ~Member() = default;
  };

  // `launched` outlives the world.
  World(const Hello& first, const LaunchedRanks& launched);

  // Refuses a rank that is there already, that means another size, or without which the survivors
  // have met.
  Status join(const Hello& hello, Member* member);
  // A member's connection has closed.
  void leave(uint32_t rank);
  bool is_empty() const;
  // Launched ranks that are here.
  std::vector<uint32_t> members() const;
  // A round has come to its end.
  bool has_met() const { return round_ > 0; }

  void contribute(uint32_t rank, Contribution contribution);
  // Some have contributed to the current round and wait for others.
  bool is_waiting() const { return contributed_ > 0 && failure_.is_ok(); }
  // The round's time is over: tells all who is missing. Survivors that are enough go on without
  // them: gives the launched ranks that are so left out.
  std::vector<uint32_t> time_out(double seconds);
  // Another process has ended: nobody need wait for it, or all wait in vain.
  void note_ended();

 private:
  // The first round of survivors is under way.
  bool is_finding_survivors() const { return survivors_ && round_ == 0; }
  uint32_t launched(uint32_t rank) const { return ranks_.empty() ? rank : ranks_[rank]; }
  // Its part of the round is here, or will never come.
  bool is_accounted_for(uint32_t rank) const;
  Status came_too_late(uint32_t rank) const;
  void end_round_if_all_are_here();
  void end_round();
  void fail(Status why);
  // "ranks 2, 5 and 7 on h1 and h3", by launched rank.
  std::string name(const std::vector<uint32_t>& ranks) const;

  const uint32_t size_;
  const bool survivors_;
  const std::vector<uint32_t> ranks_;  // as launched; empty: rank r as r
  const LaunchedRanks& launched_;
  std::vector<bool> is_included_;  // by rank; all, until the survivors are known
  std::vector<Member*> members_;   // by rank; null: not here
  std::vector<std::optional<std::string>> contributions_;
  uint32_t contributed_ = 0;
  uint32_t round_ = 0;
  Status left_;     // set once a member has closed its connection: no further round can succeed
  Status failure_;  // what every member has been told
};

}  // namespace perseus::rendezvous
