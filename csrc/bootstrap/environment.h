// Reads from the environment how this process was launched.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace perseus {

struct LaunchEnvironment {
  enum class Kind {
    kSingle,      // not launched with others
    kRendezvous,  // the ranks meet at `rendezvous`
    kMpi,         // MPI tells the rest
  };

  Kind kind = Kind::kSingle;
  // The variable that set the rank, for errors: "PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", ...
  std::string source;
  int rank = 0;
  int size = 1;
  // Where the rendezvous is served. If rank 0 serves it, there may be several places, of which it
  // takes the first that is free; otherwise there is one.
  std::vector<HostPort> rendezvous;
  std::string secret;  // bytes; for kMpi it is empty unless the user has set it
  // The secret is derived from ids that others may see, and there is no better one.
  bool has_guessable_secret = false;
  // `secret` could be guessed. The ranks, all on this host, use it only as the name under which
  // they agree on a better one: see local_secret.h.
  bool needs_local_secret = false;
  // The launcher lets the other ranks go on when a process fails; they then meet without it.
  bool survivors = false;
  // Rank 0 serves the rendezvous, not the launcher.
  bool rank_0_serves = false;
  bool serves = false;  // this process serves it
  // For kMpi: how the ranks meet if MPI turns out not to know them. Null if nothing else tells.
  std::shared_ptr<const LaunchEnvironment> without_mpi;
};

// `get` returns a variable's value or null. `mpi_library_found` is called only if an MPI launcher
// has set its variables. A malformed or missing variable is kInvalidArgument, with its name.
Result<LaunchEnvironment> read_launch_environment(
    const std::function<const char*(const char*)>& get,
    const std::function<bool()>& mpi_library_found);

// Returns the place of launched rank `rank` in the world of `ranks` (empty: all): its position in
// the list, or -1 if it is not in it. `size` is the number of launched ranks. kInvalidArgument if a
// rank is out of range or repeated.
Result<int> place_in_world(const std::vector<int>& ranks, int rank, int size);

}  // namespace perseus
