// This rank's links to all others, each made when first used. Rooms above this one reach the
// transports only through the mesh. Loop thread, except where said.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "rollcall/board.h"
#include "transport/link.h"
#include "transport/topology.h"

namespace perseus {

struct Settings;
class Bootstrap;
class KeptLinks;
class WorldKey;

// The number of TCP connections that carry data between two ranks: the most that the tuner may use,
// or none if MPI moves the data. There is one more for control messages and urgent data.
int connections_between_hosts(const Settings& settings);

// Hears what happens on the links; implemented by the engine. Loop thread.
class MeshListener {
 public:
  // A control message has arrived.
  virtual void on_control(int from, std::span<const std::byte> message) = 0;
  // The connection to `rank` is broken, or the rank is silent; its transfers have ended with `why`.
  // If `rank` is this rank, it lacks memory or descriptors for connections.
  virtual void on_rank_lost(int rank, const Status& why) = 0;
  // The connection to `rank` has ended in the same way, since something between the two ranks has
  // held back or changed what goes over it. Neither of them is to blame.
  virtual void on_connection_disturbed(int rank, const Status& why) = 0;

 protected:
  ~MeshListener() = default;
};

class Mesh {
 public:
  // Exchanges addresses with all ranks through `bootstrap`, begins to listen, and returns a mesh
  // whose links are connected on first use. Blocks for at most the start time-out of `settings`;
  // call before the loop runs. Errors name the rank and the address. `experience`: what this rank
  // tells all others of earlier worlds, in the words of a room above.
  // `kept`: the links of the mesh before; this one's go there when it has closed. Without it, all
  // connections are made anew. The loop then has its doorbell.
  static Result<std::unique_ptr<Mesh>> create(EventLoop& loop, const Settings& settings,
                                              Bootstrap& bootstrap,
                                              const std::string& experience = "",
                                              KeptLinks* kept = nullptr);
  // Tells `listener` what happens from now on. Call once, before the loop runs.
  virtual void listen(MeshListener& listener) = 0;
  // A rank that cannot take part calls this instead of create. It tells the reason to all ranks,
  // which would otherwise wait for this one. Each of them then fails with it.
  static void decline(Bootstrap& bootstrap, const Status& why);
  virtual ~Mesh() = default;

  virtual const Topology& topology() const = 0;
  // The key that these ranks have in common, and nobody else. Any thread.
  virtual const WorldKey& world_key() const = 0;
  // The experience of the lowest rank that has any; empty if none has. All ranks get the same.
  virtual const std::string& experience() const = 0;
  // Returns whether all ranks reach each other through shared memory alone, which nobody else can
  // write to. All ranks get the same answer.
  virtual bool shares_all_memory() const = 0;

  // The boards of all ranks, by rank; none unless all share memory and are connected with this one.
  virtual std::vector<SharedBoard> boards() = 0;

  // The link to `peer`; it connects when it first has something to move. If connecting fails, its
  // transfers end in error and on_rank_lost is called.
  virtual Link& link(int peer) = 0;

  // Returns whether the loop must stay on one thread, because MPI was promised that only one thread
  // calls it.
  virtual bool needs_one_thread() const = 0;

  // Returns whether all connections to the peer have been made.
  virtual bool is_connected(int peer) const = 0;
  // Returns whether the peer has said goodbye.
  virtual bool has_left(int peer) const = 0;

  // Returns the ranks whose data is awaited.
  virtual std::vector<int> awaited_peers() const = 0;

  // Sends a small message to `peer`, ahead of all data. Copies `message`. Messages to one peer
  // arrive in order.
  virtual void send_control(int peer, std::span<const std::byte> message) = 0;
  // Sets the largest piece that links send before they look for something more urgent. `bytes` is
  // at most the setting's value.
  virtual void set_chunk(uint64_t bytes) = 0;
  // Sets how many of the connections between two ranks carry data.
  virtual void set_connections(int number) = 0;

  // Ends every transfer with `why` over links that the next world may have: all but those to the
  // lost ranks. They stay unusable in this one, but still send what control messages are queued.
  // fail_all() or close() must follow.
  virtual void cut_all(const Status& why, const std::set<int>& lost) = 0;
  // Ends every transfer with `why`; the links stay unusable.
  virtual void fail_all(const Status& why) = 0;

  // Sends what is queued, says goodbye to every connected peer, and then calls `closed`. Calls it
  // after `linger` at the latest.
  virtual void close(std::chrono::milliseconds linger, std::function<void()> closed) = 0;

  // The counters of observe/counters_table.inc that links count, since creation. Any thread.
  struct Counters {
#define COUNTER(name, help)
#define MESH_COUNTER(name, help) uint64_t name = 0;
#include "observe/counters_table.inc"
#undef COUNTER
#undef MESH_COUNTER
  };
  virtual Counters counters() const = 0;
};

}  // namespace perseus
