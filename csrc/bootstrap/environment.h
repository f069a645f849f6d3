// Reads from the environment how this process was launched.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/launchers.h"
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
  // The ranks are all on this host, and learn from rank 0 what the launcher does not tell: see
  // local_meeting.h.
  bool meets_locally = false;
  // `secret` could be guessed. The ranks use it only as the name under which they meet locally.
  bool needs_local_secret = false;
  // Nobody has said at which port rank 0 serves, so it may take any that it can tell the others.
  bool any_port = false;
  // Rank 0 serves the rendezvous, not the launcher.
  bool rank_0_serves = false;
  bool is_numbered = false;  // the launcher counts the meetings, and not this process
  bool serves = false;       // this process serves it
  // For kMpi: how the ranks meet if MPI turns out not to know them. Null if nothing else tells.
  std::shared_ptr<const LaunchEnvironment> without_mpi;
};

// The world that a call of init asks for.
struct WorldRequest {
  // The launched ranks that form the world; empty: all.
  std::vector<int> ranks;
  // Counts the calls of this process that go by the environment, so that every rank's n-th call
  // meets the other ranks' n-th.
  int generation = 0;
  // The program's own numbers, which count before the environment's.
  std::optional<LaunchEnvironment> told;
};

// The source of a rank that no variable tells, but that follows from others.
inline constexpr const char* kDerivedRank = "LOCAL_RANK";

// `mpi_library_found` is called only if an MPI launcher counts. A malformed or missing variable is
// kInvalidArgument, with its name, and so are launchers that contradict each other.
Result<LaunchEnvironment> read_launch_environment(const Variables& variables,
                                                  const std::function<bool()>& mpi_library_found);
// From this process's environment.
Result<LaunchEnvironment> read_launch_environment(const std::function<bool()>& mpi_library_found);

// Returns the place of launched rank `rank` in the world of `ranks` (empty: all): its position in
// the list, or -1 if it is not in it. `size` is the number of launched ranks. kInvalidArgument if a
// rank is out of range or repeated.
Result<int> place_in_world(const std::vector<int>& ranks, int rank, int size);

}  // namespace perseus
