// Where MPI plugs in: with PERSEUS_TRANSPORT=mpi the control messages, the goodbyes and the news of
// a peer's death travel as always (shared memory or TCP), and the frames of data on a channel that
// a DataFabric makes for each link.
#pragma once

#include <memory>

#include "transport/channel.h"

namespace perseus {

// There is one for each mesh. Created before the loop runs, then used on the loop's thread;
// destroyed after all of its channels.
class DataFabric {
 public:
  virtual ~DataFabric() = default;
  // The channel to `peer`; called once a peer, on both sides, when the link is first used. Frames
  // that the other side sends before then must be kept by the fabric (MPI does). Data goes both
  // ways, and a goodbye frame as the last one each way. A fabric of MPI is a Poller, whose
  // prepare_to_sleep returns false while requests are outstanding.
  virtual std::unique_ptr<Channel> make_channel(int peer, FramePort& port) = 0;
};

}  // namespace perseus
