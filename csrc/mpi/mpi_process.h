// This process's use of MPI: initialised at most once, with a communicator of Perseus's own, which
// exists as long as the process. Perseus can be initialised and shut down many times on top of it.
#pragma once

#include <chrono>

#include "base/status.h"
#include "mpi/mpi.h"

namespace perseus {

struct MpiProcess {
  Mpi* mpi = nullptr;
  // Has all launched ranks, returns errors, and carries Perseus's own messages only.
  MpiComm comm;
  int rank = 0;
  int size = 1;
  // Perseus has initialised MPI, and will finalise it when the process exits.
  bool initialized_here = false;
};

// Initialises MPI and makes the communicator. Every launched process must call this, since making a
// communicator is collective. Fails if one has not called it within `time_out`; it may then be
// called again. One thread at a time.
Result<MpiProcess> join_mpi(Mpi& mpi, std::chrono::milliseconds time_out);

// Prevents MPI from being finalised when the process exits, for a process whose engine cannot be
// ended.
void skip_mpi_finalize();

// Waits for the request, testing it at growing intervals. Returns kTimedOut at the deadline; the
// request and its memory are then still in use.
Status wait_for(Mpi& mpi, MpiRequest& request, std::chrono::steady_clock::time_point deadline);

// Pauses between two tests of MPI's progress: short at first, for ranks that arrive together, and
// growing, for ranks that wait for a straggler.
class MpiBackoff {
 public:
  void pause();

 private:
  std::chrono::microseconds length_{20};
};

}  // namespace perseus
