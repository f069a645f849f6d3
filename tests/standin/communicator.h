// A communicator of NCCL: one rank's part in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collective.h"
#include "device/cuda/nccl.h"
#include "injection.h"
#include "mesh.h"

namespace perseus::standin {

inline constexpr NcclResult kNcclUnhandledCudaError = 1;
inline constexpr NcclResult kNcclSystemError = 2;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;
inline constexpr NcclResult kNcclRemoteError = 6;

// Any thread. Its collectives run on their streams' threads, which keep it alive.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // `name` is that of the meeting place.
  Communicator(std::string name, int rank, int ranks, int device, bool is_blocking);

  // Connects on a thread of its own.
  void start();
  // Waits until it is connected: its error, if it is not.
  NcclResult wait_for_start();
  // kNcclInProgress while it connects or ends what was finalized; then its error, if any.
  NcclResult error();
  void launch(Collective collective, CuStream stream);
  // No more launches will come; waits for those that have, if the communicator is blocking.
  void finalize();
  void wait_for_work();
  // Ends all that runs, at once.
  void abort();

  const int rank;
  const int ranks;
  const int device;
  const bool is_blocking;

 private:
  struct Turn {
    uint64_t launch;  // of the communicator
    uint64_t ticket;  // of the device
  };

  NcclResult connect();
  void run(const Collective& collective, Turn turn, CollectiveFault fault);
  Mesh::End compare(const Collective& collective);

  Mesh mesh_;
  bool is_started_ = false;
  bool is_finalized_ = false;
  bool is_aborted_ = false;
  NcclResult error_ = kNcclSuccess;
  uint64_t launched_ = 0;
  uint64_t done_ = 0;
};

}  // namespace perseus::standin
