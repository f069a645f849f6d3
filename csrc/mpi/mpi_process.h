// This process's part in MPI: initialised at most once, with a communicator of Perseus's own, which
// lives as long as the process does. Init and shutdown of Perseus come and go above it.
#pragma once

#include <chrono>

#include "base/status.h"
#include "mpi/mpi.h"

namespace perseus {

struct MpiProcess {
  Mpi* mpi = nullptr;
  // Of all launched ranks; errors on it are returned. Perseus's own traffic only.
  MpiComm comm;
  int rank = 0;
  int size = 1;
  // MPI was not initialised before; it will be finalised when the process exits.
  bool initialized_here = false;
};

// Every launched process must call it, since making a communicator takes all; one that does not
// come within `time_out` makes it fail, and it may be called again. One thread at a time.
Result<MpiProcess> join_mpi(Mpi& mpi, std::chrono::milliseconds time_out);

// MPI is not finalised when the process exits. For one whose engine cannot be ended.
void skip_mpi_finalize();

// Waits for the request by testing it, at growing intervals. kTimedOut at the deadline; the request
// and its memory are then still in use.
Status wait_for(Mpi& mpi, MpiRequest& request, std::chrono::steady_clock::time_point deadline);

// Between two looks at what MPI has done: short at first, for ranks that come together, then long,
// for those that wait for a straggler.
class MpiBackoff {
 public:
  void pause();

 private:
  std::chrono::microseconds length_{20};
};

}  // namespace perseus
