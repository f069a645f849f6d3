// Where MPI plugs in: with PERSEUS_TRANSPORT=mpi the control messages, the goodbyes and the news of
// a peer's death travel as always (shared memory or TCP), and the frames of data on a channel that
// a DataFabric makes for each link.
#pragma once

#include <memory>

#include "base/event_loop.h"
#include "base/status.h"
#include "transport/channel.h"

namespace perseus {

struct Settings;
class Bootstrap;

// One a mesh; created before the loop runs, then used on the loop's thread. Destroyed after all of
// its channels.
class DataFabric {
 public:
  virtual ~DataFabric() = default;
  // The channel to `peer`; called once a peer, on both sides, when the link is first used. Frames
  // that the other side sends before then must be kept by the fabric (MPI does). Data goes both
  // ways, and a goodbye frame as the last one each way. A fabric of MPI is a Poller, whose
  // prepare_to_sleep returns false while requests are outstanding.
  virtual std::unique_ptr<Channel> make_channel(int peer, FramePort& port) = 0;
};

// Collective over all ranks of `bootstrap`.
using DataFabricMaker = Result<std::unique_ptr<DataFabric>> (*)(EventLoop& loop,
                                                                const Settings& settings,
                                                                Bootstrap& bootstrap);

// Replaces the maker that PERSEUS_TRANSPORT=mpi uses; with null it is kUnsupported. For tests.
// Before Mesh::create, from one thread.
void set_mpi_fabric_maker(DataFabricMaker maker);

}  // namespace perseus
