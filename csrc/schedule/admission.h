// Decides which shard may start now: those of higher priority first, then in the order of
// agreement. It limits the number of shards under way, and the bytes (the credit) of those that are
// at least as urgent as the next. Less urgent shards do not count towards the credit, since
// links move them later. If they did, ranks that learn of shards at different moments would fill
// their credit with different ones, and each would wait for the others to start its own.
//
// The oldest unfinished shard of each process set may always start, whatever else is under way.
// Ranks start shards in different orders, since they learn of them at different moments. Without
// this rule two ranks could fill their streams with shards that each waits for the other to start.
// With it, the oldest shard is sooner or later under way on all ranks of its set, so it ends; by
// induction all shards end.
#pragma once

#include <climits>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace perseus {

// A shard as admission sees it; the owner embeds it. One thread.
struct Ticket {
  enum class State : uint8_t { kWaiting, kRunning, kFinished };
  int32_t process_set = 0;
  int32_t priority = 0;
  uint64_t bytes = 0;
  int timeline_row = -1;  // while it runs: its stream; GpuLaunches has others

  // For admission alone.
  State state = State::kWaiting;
  bool is_listed = false;  // in waiting_, where it may stay for a while after it has started
  uint64_t order = 0;
  Ticket* next = nullptr;  // the next younger one of the same process set
};

class Admission {
 public:
  // `streams`: how many shards may run at once. kAnyNumber: the credit alone limits them.
  static constexpr int kAnyNumber = INT_MAX;
  Admission(int streams, uint64_t credit_bytes) : credit_bytes_(credit_bytes), streams_(streams) {}

  // Tickets of a process set must come in the agreed order. A ticket must live until collect() has
  // returned it.
  void add(Ticket* ticket);
  // Starts the next ticket that may run and returns it, or null.
  Ticket* start_next();
  void finish(Ticket* ticket);
  // Returns the finished tickets that admission no longer needs, each once. Valid until the next
  // call.
  std::span<Ticket* const> collect();
  // Finishes all tickets that have not started, and returns them.
  std::vector<Ticket*> cancel_waiting();

  // Returns whether no ticket waits or runs.
  bool is_idle() const { return unfinished_ == 0; }
  // The bytes of all tickets that are not finished.
  uint64_t bytes_unfinished() const { return bytes_unfinished_; }
  // The tuner's. Applies to shards that start from now on.
  void set_limits(int streams, uint64_t credit_bytes) {
    streams_ = streams;
    credit_bytes_ = credit_bytes;
  }

 private:
  struct Later {
    bool operator()(const Ticket* a, const Ticket* b) const {
      if (a->priority != b->priority) return a->priority < b->priority;
      return a->order > b->order;
    }
  };
  // Tickets in the order of add().
  struct Queue {
    Ticket* first = nullptr;
    Ticket* last = nullptr;
  };
  Ticket* oldest_waiting_head() const;
  Ticket* most_urgent();
  // Removes tickets that have started from the front of waiting_.
  void drop_started();
  bool has_room_for(const Ticket& ticket) const;
  void run(Ticket* ticket);

  uint64_t credit_bytes_;
  int streams_;
  uint64_t next_order_ = 0;
  int running_ = 0;
  int unfinished_ = 0;
  uint64_t bytes_unfinished_ = 0;
  std::vector<Ticket*> waiting_;  // heap by Later; started ones are dropped when they come up
  // By process set, beginning with its oldest unfinished ticket.
  std::unordered_map<int32_t, Queue> queues_;
  std::vector<Ticket*> running_tickets_;
  std::vector<bool> stream_used_;
  std::vector<Ticket*> collected_, given_back_;
};

}  // namespace perseus
