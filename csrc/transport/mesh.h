// This rank's links to all others, made when first used. The one thing of the transports that the
// rooms above see. Loop thread, except where said.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/topology.h"

namespace perseus {

struct Settings;
class Bootstrap;

// TCP connections that carry data between two ranks: as many as the tuner may come to want, none
// if MPI moves the data. With them comes one for control messages and for what is urgent.
int connections_between_hosts(const Settings& settings);

// The engine's ear. Loop thread.
class MeshListener {
 public:
  // A control message has arrived whole.
  virtual void on_control(int from, std::span<const std::byte> message) = 0;
  // The connection to `rank` broke or the rank fell silent: its transfers have ended with `why`.
  // This rank itself: it has no memory or descriptors for connections that are needed.
  virtual void on_rank_lost(int rank, const Status& why) = 0;

 protected:
  ~MeshListener() = default;
};

class Mesh {
 public:
  // Exchanges addresses with all ranks through `bootstrap`, opens what is needed to be reached,
  // and returns a mesh whose links are connected on first use. Blocks for at most the connect
  // time-out of `settings`; call before the loop runs. Errors name the rank and the address.
  static Result<std::unique_ptr<Mesh>> create(EventLoop& loop, const Settings& settings,
                                              Bootstrap& bootstrap);
  // Tells `listener` what happens from now on. To be called once, before the loop runs.
  virtual void listen(MeshListener& listener) = 0;
  // In place of create: tells all ranks, which else would wait for this one, why it cannot take
  // part. Each of them then fails with the reason.
  static void decline(Bootstrap& bootstrap, const Status& why);
  virtual ~Mesh() = default;

  virtual const Topology& topology() const = 0;

  // The link to `peer`; it connects when it first has something to move. If connecting fails, its
  // transfers end in error and on_rank_lost is called.
  virtual Link& link(int peer) = 0;

  // Whether the loop must stay on one thread: MPI may have been promised that.
  virtual bool needs_one_thread() const = 0;

  // Whether all connections to the peer have been made.
  virtual bool is_connected(int peer) const = 0;
  // Whether the peer has said goodbye.
  virtual bool has_left(int peer) const = 0;

  // Sends a small message to `peer`, ahead of all data. Copies `message`. Messages to one peer
  // arrive in order.
  virtual void send_control(int peer, std::span<const std::byte> message) = 0;
  // The largest piece that links move before they look for something more urgent, from now on; not
  // above the setting's.
  virtual void set_chunk(uint64_t bytes) = 0;
  // How many of the connections between two ranks carry data, from now on.
  virtual void set_connections(int number) = 0;

  // Ends every transfer with `why`; the links stay unusable.
  virtual void fail_all(const Status& why) = 0;

  // Says goodbye to every connected peer once all that is queued has left, then calls `closed`;
  // at the latest after `linger`.
  virtual void close(std::chrono::milliseconds linger, std::function<void()> closed) = 0;

  // Counters since creation: messages and bytes, control and data apart. Any thread.
  struct Counters {
    uint64_t control_messages_sent = 0, control_bytes_sent = 0;
    uint64_t control_messages_received = 0, control_bytes_received = 0;
    uint64_t data_bytes_sent_shm = 0, data_bytes_sent_tcp = 0, data_bytes_sent_mpi = 0;
    uint64_t frames_sent = 0, frames_received = 0, unexpected_frames = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace perseus
