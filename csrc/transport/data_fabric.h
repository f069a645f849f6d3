// The interface for moving data by MPI. With PERSEUS_TRANSPORT=mpi, control messages, goodbyes and
// the news of a peer's death still travel over shared memory or TCP, and data frames on a channel
// that a DataFabric makes for each link.
#pragma once

#include <memory>

#include "transport/channel.h"

namespace perseus {

// There is one for each mesh. Created before the loop runs, then used on the loop's thread;
// destroyed after all of its channels.
class DataFabric {
 public:
  virtual ~DataFabric() = default;
  // Makes the channel to `peer`. Called once for each peer, on both sides, when the link is first
  // used. Frames that the other side sends before then must be kept by the fabric (MPI does). Data
  // goes both ways, with a goodbye frame as the last one each way.
  virtual std::unique_ptr<Channel> make_channel(int peer, FramePort& port) = 0;
};

}  // namespace perseus
