// The part of MPI that Perseus uses, the same over every binary interface. No MPI header is needed
// to build this: the library is opened at run time, the one already in the process first (the
// user's own, as mpi4py or the launcher's preload brought it), and spoken to through the shim of
// its interface: Open MPI's (libmpi.so.40), MPICH's (libmpi.so.12; Intel MPI, MVAPICH and Cray too)
// or that of the MPI-5 standard (libmpi_abi.so.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

// Handles of any interface: an integer or a pointer. Copied freely; who frees them is said where
// they are made.
struct MpiComm {
  uintptr_t bits = 0;
};
struct MpiRequest {
  uintptr_t bits = 0;
};
struct MpiMessage {
  uintptr_t bits = 0;
};

// A message that has been matched and is still to be received.
struct MpiMatchedMessage {
  MpiMessage message;
  int source = -1;
  int tag = -1;
  size_t bytes = 0;
};

enum class MpiThreadLevel { kSingle, kFunneled, kSerialized, kMultiple };

// Who may call what when is MPI's own rule: any thread at kMultiple, one at a time at kSerialized,
// the thread that initialised MPI below. Errors carry MPI's text.
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
  // Begins a collective that gives a communicator of the same ranks, whose errors are returned
  // instead of ending the job. `*out` must stay where it is until `request` is done.
  virtual Status begin_duplicate(MpiComm comm, MpiComm* out, MpiRequest& request) = 0;
  virtual Status return_errors(MpiComm comm) = 0;

  // The bytes must stay until the request is done.
  virtual Status begin_send(MpiComm comm, int to, int tag, const void* data, size_t bytes,
                            MpiRequest& request) = 0;
  // Takes the next message of `source` (or kAnySource) and `tag` off the queue, if there is one.
  virtual Status match(MpiComm comm, int source, int tag, bool& found,
                       MpiMatchedMessage& arrival) = 0;
  // Begins receiving a matched message; `target` holds at least arrival.bytes.
  virtual Status begin_receive(MpiMatchedMessage& arrival, void* target, MpiRequest& request) = 0;
  // Makes progress; once done, the request is gone.
  virtual Status test(MpiRequest& request, bool& done) = 0;
};

// The shims. `library` is dlopen's handle; null when a symbol is missing, which `missing` then
// names.
std::unique_ptr<Mpi> bind_open_mpi(void* library, const std::string& path, std::string& missing);
std::unique_ptr<Mpi> bind_mpich(void* library, const std::string& path, std::string& missing);
std::unique_ptr<Mpi> bind_mpi_abi(void* library, const std::string& path, std::string& missing);

}  // namespace perseus
