// A communicator of NCCL: one rank's part in it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective.h"
#include "device/cuda/nccl.h"
#include "injection.h"
#include "mesh.h"

namespace perseus::standin {

inline constexpr NcclResult kNcclUnhandledCudaError = 1;
inline constexpr NcclResult kNcclSystemError = 2;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;

// Any thread. Its collectives run on their streams' threads, which keep it alive.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // `name` is that of the meeting place.
  Communicator(std::string name, int rank, int ranks, int device, bool is_blocking);

  // Connects on a thread of its own.
  void start();
  // Waits until it is connected; returns its error if that fails.
  NcclResult wait_for_start();
  // kNcclInProgress while it connects, or finalizes; then its error, if any.
  NcclResult error();
  void launch(Collective collective, CuStream stream);
  // No more launches will come; waits for those that have, if the communicator is blocking.
  void finalize();
  void wait_for_work();
  // Ends all running collectives at once.
  void abort();

  // Makes another communicator from this one: runs `make`, with a name that is the same on all
  // ranks, on a thread of its own. Until that ends, this one is in progress. Ends the process if
  // collectives are under way.
  void divide(const char* call, std::function<NcclResult(const std::string& name)> make);
  // Called in `make`: exchanges a value of each rank, by rank.
  template <typename Value>
  NcclResult share(const Value& mine, std::vector<Value>& all) {
    all.assign(static_cast<size_t>(ranks), mine);
    return share_bytes(&mine, all.data(), sizeof(Value));
  }
  // Counts the communicators made without the same ranks.
  std::string next_shrink(const std::string& without);

  void* register_buffer(const void* buffer, size_t bytes);
  // Returns false if there is nothing of that name.
  bool deregister_buffer(void* registered);
  bool is_registered(const void* bytes, size_t count);
  bool has_registered();

  const std::string name;
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
  NcclResult share_bytes(const void* mine, void* all, size_t bytes);
  void run(const Collective& collective, Turn turn, CollectiveFault fault);
  Mesh::End compare(const Collective& collective);

  Mesh mesh_;
  bool is_started_ = false;
  bool is_finalized_ = false;
  bool is_aborted_ = false;
  NcclResult error_ = kNcclSuccess;
  uint64_t launched_ = 0;
  uint64_t done_ = 0;
  bool is_dividing_ = false;
  int divided_ = 0;
  std::map<std::string, int> shrunk_;
  struct Registered {
    uintptr_t begin;
    uintptr_t end;
  };
  uintptr_t registrations_ = 0;
  std::map<void*, Registered> registered_;
};

}  // namespace perseus::standin
