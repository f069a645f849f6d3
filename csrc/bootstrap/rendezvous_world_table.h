// All worlds of one rendezvous server, with the timers that bound how long each waits for its
// ranks. Server's thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "bootstrap/rendezvous_protocol.h"
#include "bootstrap/rendezvous_world.h"

namespace perseus::rendezvous {

class WorldTable {
 private:
  // The launched ranks that are to meet; empty: all.
  using Membership = std::vector<uint32_t>;
  // With that, which of their worlds: its generation, and how many meetings timed out before it.
  using Key = std::tuple<Membership, uint32_t, uint32_t>;
  struct Entry {
    Entry(const Hello& first, const LaunchedRanks& launched, MetWorlds& met)
        : world(first, launched, met), is_numbered(first.is_numbered) {}
    World world;
    bool is_numbered;
    EventLoop::TimerId timer = 0;  // 0: not set
    Clock::time_point began;       // of the current round
  };
  using Entries = std::map<Key, Entry>;

 public:
  // A world in the table; valid until its last member leaves.
  using Handle = Entries::iterator;

  // `size`: how many ranks are launched at first. `met` outlives the table.
  WorldTable(EventLoop& loop, uint32_t size, LaunchedRanks launched, MetWorlds& met)
      : loop_(loop), size_(size), launched_(std::move(launched)), met_(met) {}

  // Lets the member join the world that its hello describes, or says why not.
  Status join(const Hello& hello, World::Member* member, Handle& world);
  void contribute(Handle world, uint32_t rank, Contribution contribution);
  // See World::leave.
  void leave(Handle world, uint32_t rank, const std::string& how);

  // How many ranks have been launched.
  uint32_t size() const { return size_; }
  // The launcher starts one more, on this host.
  void add_rank(std::string host);
  // The process of this launched rank has ended; `how` is for errors.
  void note_ended(uint32_t rank, std::string how);

 private:
  Status check(const Hello& hello) const;
  // Stops the timer if no round is waiting for ranks.
  void update_timer(Entry& entry);
  void time_out(Handle world);

  EventLoop& loop_;
  uint32_t size_;
  LaunchedRanks launched_;
  MetWorlds& met_;
  Entries entries_;
  // Why ranks have not met in a world that the launcher has numbered. It has them meet in another
  // one, so whoever comes to this one late would wait for nobody.
  std::map<Key, Status> failed_;
  // Meetings that timed out before all had come, by membership. Each of them was a generation to
  // the ranks that took part, but not to the others: so they are counted by launched rank, too.
  struct TimedOut {
    uint32_t meetings = 0;
    std::map<uint32_t, uint32_t> by_rank;
  };
  std::map<Membership, TimedOut> timed_out_;
};

}  // namespace perseus::rendezvous
