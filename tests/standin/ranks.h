// Ranks of a test: processes with devices of their own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "libraries.h"

namespace perseus::standin {

// The resources of a rank's process.
struct Rank {
  int rank;
  int ranks;
  std::vector<NcclUniqueId> ids;
  Cuda cuda{};
  NcclLibrary nccl{};
  CuStream stream = cuda.new_stream();
  CuEvent event = cuda.new_event();
  NcclHandle comm = nullptr;

  NcclConfig config() const {
    int version = 0;
    require(nccl.version(&version), "ncclGetVersion");
    return NcclConfig::of(version);
  }
  NcclResult connect(size_t id = 0, int blocking = 1) {
    NcclConfig config = this->config();
    config.blocking = blocking;
    return nccl.init_rank(&comm, ranks, ids[id], rank, &config);
  }
  NcclResult error() const {
    NcclResult result = kNcclSuccess;
    require(nccl.async_error(comm, &result), "ncclCommGetAsyncError");
    return result;
  }
  // Waits until the stream has done all its work.
  void wait() const {
    require(cuda.record_event(event, stream), "cuEventRecord");
    cuda.wait_for(event);
  }
  template <typename Element>
  Element* buffer(const std::vector<Element>& values) const {
    const CuPointer pointer = cuda.device_memory(values.size() * sizeof(Element));
    require(cuda.copy_to_device(pointer, values.data(), values.size() * sizeof(Element), stream),
            "cuMemcpyHtoDAsync");
    wait();
    return reinterpret_cast<Element*>(pointer);
  }
  template <typename Element>
  std::vector<Element> values(const Element* buffer, size_t count) const {
    std::vector<Element> values(count);
    require(cuda.copy_to_host(values.data(), reinterpret_cast<CuPointer>(buffer),
                              count * sizeof(Element), stream),
            "cuMemcpyDtoHAsync");
    wait();
    return values;
  }
};

// Runs the body in this many processes and ends this one, with 0 if all of them did. Call before
// any thread is started.
[[noreturn]] inline void in_ranks(int ranks, const std::function<void(Rank&)>& body) {
  std::vector<NcclUniqueId> ids(2);
  {
    NcclLibrary nccl;
    for (NcclUniqueId& id : ids) require(nccl.unique_id(&id), "ncclGetUniqueId");
  }
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(fork());
    if (processes.back() != 0) continue;
    alarm(60);  // a rank that hangs fails
    Rank here{rank, ranks, ids};
    body(here);
    _exit(0);
  }
  int failed = 0;
  for (pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    if (status != 0) failed = 1;
  }
  _exit(failed);
}

inline void expect(bool is_true, const char* what) { require(is_true ? 0 : 1, what); }

}  // namespace perseus::standin
