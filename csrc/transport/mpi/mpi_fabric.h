// Sends each frame as one MPI message, over the communicator that the bootstrap made. A frame is
// copied into memory of the fabric before it is sent, and is received into such memory. So whatever
// happens to a peer or a link, MPI never uses a buffer of the engine.
//
// A thread cannot sleep until MPI makes progress. So while frames are under way or awaited, the
// loop polls: all the time until nothing has moved for kPollTime, then once every kPollInterval, so
// that waiting for a straggler costs little. With nothing under way or awaited it sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/buffer_pool.h"
#include "base/event_loop.h"
#include "bootstrap/mpi_bootstrap.h"
#include "transport/channel.h"
#include "transport/data_fabric.h"

namespace perseus {

class MpiChannel;

// Loop thread, once the loop runs.
class MpiFabric final : public DataFabric, private Poller {
 public:
  MpiFabric(EventLoop& loop, const MpiBootstrap& bootstrap, uint64_t max_payload);
  ~MpiFabric() override;

  std::unique_ptr<Channel> make_channel(int peer, FramePort& port) override;

 private:
  friend class MpiChannel;

  // A message that MPI is sending or receiving.
  struct PendingMessage {
    Buffer memory;
    size_t bytes = 0;  // header and payload
    MpiRequest request;
    bool done = false;
  };
  struct Peer {
    MpiChannel* channel = nullptr;
    bool opened = false;  // there has been a channel; it may be closed by now
    bool closed = false;  // frames that still arrive are dropped
    // The last frame each way has been sent or received.
    bool said_goodbye = false, heard_goodbye = false;
    bool ended = false;  // the peer's fabric sends nothing more
    std::deque<PendingMessage> sends, receives;
  };

  // For channels.
  void open(int peer, MpiChannel* channel);
  void close(int peer);
  void send_all(int peer);

  bool poll() override;
  bool prepare_to_sleep() override;
  void awake() override {}

  bool progress_sends();
  bool match_arrivals();
  bool progress_receives();
  void deliver(int peer, const PendingMessage& message);
  bool is_done(PendingMessage& message);
  Status receive(int peer, MpiMatchedMessage& arrival);
  bool is_busy() const;
  void fail(int peer, const Status& why);
  void fail_all(const Status& why);
  void end_with_peers();
  void abandon_what_is_left();

  EventLoop& loop_;
  Mpi& mpi_;
  const MpiComm comm_;
  const int tag_;
  const uint64_t max_payload_;
  const std::vector<int> launched_;  // rank in comm_ by rank in the world
  std::vector<int> world_rank_;      // the inverse; -1: not in this world
  std::unique_ptr<BufferPool> buffers_;
  std::vector<Peer> peers_;
  bool was_busy_ = false;
  bool is_sleeping_ = false;
  Clock::time_point poll_until_;
  EventLoop::TimerId sleep_timer_ = 0;
};

// The fabric of PERSEUS_TRANSPORT=mpi; collective over all ranks of `bootstrap`. kUnsupported, on
// every rank, unless MPI launched the ranks and lets the engine's thread use it on all of them.
Result<std::unique_ptr<DataFabric>> make_mpi_fabric(EventLoop& loop, const Settings& settings,
                                                    Bootstrap& bootstrap);

}  // namespace perseus
