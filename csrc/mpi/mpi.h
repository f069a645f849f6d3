// The part of MPI that Perseus uses, the same for every binary interface. No MPI header is needed
// to build this: the library is opened at run time, preferably the one that is already in the
// process (the user's own, brought by mpi4py or the launcher's preload). Each binary interface has
// a shim: Open MPI's (libmpi.so.40), MPICH's (libmpi.so.12; also Intel MPI, MVAPICH and Cray) and
// that of the MPI-5 standard (libmpi_abi.so.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

// Handles of any interface: an integer or a pointer. They may be copied freely. The function that
// creates one says who frees it.
struct MpiComm {
  uintptr_t bits = 0;
};
struct MpiRequest {
  uintptr_t bits = 0;
};
struct MpiMessage {
  uintptr_t bits = 0;
};

// A message that has been matched but not yet received.
struct MpiMatchedMessage {
  MpiMessage message;
  int source = -1;
  int tag = -1;
  size_t bytes = 0;
};

enum class MpiThreadLevel { kSingle, kFunneled, kSerialized, kMultiple };

// MPI's own rule says which threads may call: any at kMultiple, one at a time at kSerialized, and
// below that only the thread that initialised MPI. Errors carry MPI's text.
class Mpi {
 public:
  static constexpr int kAnySource = -1;

  virtual ~Mpi() = default;
  // "Open MPI v5.0.11 (/usr/lib/libmpi.so.40)".
  virtual std::string version() const = 0;

  virtual bool is_initialized() const = 0;
  virtual bool is_finalized() const = 0;
  virtual Status initialize(MpiThreadLevel wanted) = 0;
  virtual Status finalize() = 0;
  virtual MpiThreadLevel thread_level() const = 0;
  virtual bool is_main_thread() const = 0;

  // MPI_COMM_WORLD.
  virtual MpiComm world() const = 0;
  virtual Result<int> rank(MpiComm comm) const = 0;
  virtual Result<int> size(MpiComm comm) const = 0;
  // Begins a collective that makes a communicator of the same ranks. `*out` must stay where it is
  // until `request` is done.
  virtual Status begin_duplicate(MpiComm comm, MpiComm* out, MpiRequest& request) = 0;
  // Errors on the communicator are returned from now on, instead of ending the job.
  virtual Status return_errors(MpiComm comm) = 0;

  // The bytes must stay unchanged until the request is done.
  virtual Status begin_send(MpiComm comm, int to, int tag, const void* data, size_t bytes,
                            MpiRequest& request) = 0;
  // Takes the next message from `source` (or kAnySource) with `tag` off the queue, if there is one.
  virtual Status match(MpiComm comm, int source, int tag, bool& found,
                       MpiMatchedMessage& arrival) = 0;
  // Begins receiving a matched message; `target` holds at least arrival.bytes.
  virtual Status begin_receive(MpiMatchedMessage& arrival, void* target, MpiRequest& request) = 0;
  // Makes progress. Once it is done, the request no longer exists.
  virtual Status test(MpiRequest& request, bool& done) = 0;
};

// The shims. `library` is a handle from dlopen. They return null if a symbol is missing, which
// `missing` then names.
std::unique_ptr<Mpi> bind_open_mpi(void* library, const std::string& path, std::string& missing);
std::unique_ptr<Mpi> bind_mpich(void* library, const std::string& path, std::string& missing);
std::unique_ptr<Mpi> bind_mpi_abi(void* library, const std::string& path, std::string& missing);

}  // namespace perseus
