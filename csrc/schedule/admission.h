// Which shard may start now. Higher priority first, then the order of agreement; at most so many
// at once, and so many bytes of those that are as urgent or more. What is less urgent does not
// count: links move it later. If it did, ranks that learn of shards at different moments would fill
// their credit with different ones, each of which waits for the others to start it.
//
// The oldest unfinished shard of each process set may always start, whatever else is under way.
// Ranks start shards in different orders, since they learn of them at different moments; without
// that rule two ranks could fill their streams with shards that each waits for the other to start.
// With it, the oldest shard is under way on all ranks of its set sooner or later, so it ends, and
// by induction all do.
#pragma once

#include <climits>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace perseus {

// What admission knows of a shard; the owner embeds it. One thread.
struct Ticket {
  enum class State : uint8_t { kWaiting, kRunning, kFinished };
  int32_t process_set = 0;
  int32_t priority = 0;
  uint64_t bytes = 0;
  int lane = -1;  // stream that carries it while it runs

  // Admission's own.
  State state = State::kWaiting;
  bool is_listed = false;  // among those that wait, perhaps although it has started
  uint64_t order = 0;
  Ticket* next = nullptr;  // younger, of the same process set
};

class Admission {
 public:
  // `streams`: shards at once; kAnyNumber leaves that to the credit.
  static constexpr int kAnyNumber = INT_MAX;
  Admission(int streams, uint64_t credit_bytes) : credit_bytes_(credit_bytes), lanes_(streams) {}

  // In the agreed order of its process set. The ticket must live until collect() has given it back.
  void add(Ticket* ticket);
  // The next that may start, now running, or null.
  Ticket* start_next();
  void finish(Ticket* ticket);
  // Finished tickets that admission no longer looks at and has not given back before; good until
  // the next call.
  std::span<Ticket* const> collect();
  // All tickets that have not started, which are finished hereby.
  std::vector<Ticket*> cancel_waiting();

  // Whether no ticket waits or runs.
  bool is_idle() const { return unfinished_ == 0; }
  // Of all tickets that are not finished.
  uint64_t bytes_unfinished() const { return bytes_unfinished_; }
  // For the tuner; takes effect for shards that start from now on.
  void set_limits(int streams, uint64_t credit_bytes) {
    lanes_ = streams;
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
  // Takes those that have started off the front of those that wait.
  void drop_started();
  bool has_room_for(const Ticket& ticket) const;
  void run(Ticket* ticket);

  uint64_t credit_bytes_;
  int lanes_;
  uint64_t next_order_ = 0;
  int running_ = 0;
  int unfinished_ = 0;
  uint64_t bytes_unfinished_ = 0;
  std::vector<Ticket*> waiting_;  // heap by Later; started ones are dropped when they come up
  // By process set, from the oldest that is unfinished on.
  std::unordered_map<int32_t, Queue> queues_;
  std::vector<Ticket*> running_tickets_;
  std::vector<bool> lane_used_;
  std::vector<Ticket*> collected_, given_back_;
};

}  // namespace perseus
