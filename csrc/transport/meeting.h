// How the ranks of a world meet. Each listens and writes its addresses and settings on a card; all
// exchange their cards; each then derives from all cards who is where and how to reach them, so
// that all come to the same result.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "base/world_key.h"
#include "transport/acceptor.h"
#include "transport/handshake.h"
#include "transport/peer_routes.h"
#include "transport/tcp/frame_guard.h"
#include "transport/topology.h"

namespace perseus {

struct Settings;
class Bootstrap;

// The ranks know this of each other once they have met.
struct Met {
  Topology topology;
  PeerRoutes routes;
  std::optional<WorldKey> key;  // not empty
  WireProtection protection;
  Nonce job{};             // the number of this world
  std::string experience;  // see Mesh::experience
};

// Has `acceptor` listen, and exchanges cards with all ranks. Blocks for at most the start time-out
// of `settings`. Errors name the rank and the address, and all ranks get the same one.
// `process`: see KeptLinks. `experience`: see Mesh::create.
Result<Met> meet(const Settings& settings, const PeerRoutes::Options& options, Acceptor& acceptor,
                 Bootstrap& bootstrap, const Nonce& process, const std::string& experience);

}  // namespace perseus
