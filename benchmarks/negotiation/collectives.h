// Collectives of small buffers as Open MPI, MPICH and Gloo run them: the sends and waits of each
// rank, in order. Only sizes matter here, so the messages carry nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "network.h"

namespace perseus::simulation {

struct Step {
  enum class Kind : uint8_t { kSend, kReceive, kWork };
  Kind kind = Kind::kSend;
  int peer = 0;      // sent to, or received from
  size_t bytes = 0;  // sent
  Nanoseconds work = 0;
};
using Steps = std::vector<Step>;

inline Step send_to(int peer, size_t bytes) { return {Step::Kind::kSend, peer, bytes, 0}; }
inline Step receive_from(int peer) { return {Step::Kind::kReceive, peer, 0, 0}; }
inline Step work_for(Nanoseconds work) { return {Step::Kind::kWork, 0, 0, work}; }

// Each appends the steps of `rank` of `size`. The root is rank 0.

// From every rank to the root and back, one rank after the other (MPI_Gatherv is linear in both
// MPIs).
void linear_gather(int rank, int size, size_t bytes, Nanoseconds work_each, Steps& steps);
void linear_broadcast(int rank, int size, size_t bytes, Steps& steps);
// For small buffers in both MPIs, and Gloo's broadcast. The gather's messages grow toward the root.
void binomial_gather(int rank, int size, size_t bytes_each, Steps& steps);
void binomial_broadcast(int rank, int size, size_t bytes, Steps& steps);
// MPI_Allreduce of small buffers (Thakur, Rabenseifner, Gropp 2005, section 4.1): ranks beyond a
// power of two are folded in first, and get the result at the end.
void recursive_doubling_allreduce(int rank, int size, size_t bytes, Steps& steps);
// gloo::allreduce, which by default is a ring for any size. The buffer is cut into two segments for
// each rank, of at least one word; segments beyond its end are empty and not sent.
void ring_allreduce(int rank, int size, size_t words, Steps& steps);
// gloo::allgather and allgatherv.
void ring_allgather(int rank, int size, size_t bytes_each, Steps& steps);

}  // namespace perseus::simulation
