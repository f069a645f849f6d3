// How this process was launched, read from its environment.
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
    kMpi,         // MPI knows the rest
  };

  Kind kind = Kind::kSingle;
  // What set the ranks, for error texts: "PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", ...
  std::string source;
  int rank = 0;
  int size = 1;
  // Rank 0 may serve at any of them, and does so at the first that is free. Else there is one.
  std::vector<HostPort> rendezvous;
  std::string secret;  // bytes
  // Strangers can guess `secret`, but all ranks are on this host and can agree on a better one.
  bool needs_local_secret = false;
  // The launcher lets the others go on when a process fails: they meet without it.
  bool survivors = false;
  // No launcher serves the rendezvous: rank 0 does.
  bool rank_0_serves = false;
  bool serves = false;  // this process does
  // Of kMpi: how the ranks meet if MPI proves not to know of them. Null if nothing else tells.
  std::shared_ptr<const LaunchEnvironment> without_mpi;
};

// `get` gives a variable's value or null. `mpi_library_found` is asked only when an MPI launcher
// has left its variables. A malformed or missing variable is kInvalidArgument, by name.
Result<LaunchEnvironment> read_launch_environment(
    const std::function<const char*(const char*)>& get,
    const std::function<bool()>& mpi_library_found);

// This process's place in the world that `ranks` (empty: all) makes of a job of `size`: its
// position in the list, or -1 if it is left out. kInvalidArgument for a rank out of range or
// repeated.
Result<int> place_in_world(const std::vector<int>& ranks, int rank, int size);

}  // namespace perseus
