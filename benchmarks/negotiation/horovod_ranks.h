// Horovod's ways to agree, over the simulated network.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives.h"
#include "network.h"

namespace perseus::simulation {

enum class HorovodScheme {
  // Rank 0 hears from the other ranks one after the other, and answers them one after the other, as
  // Horovod's paper and documentation describe (Sergeev, Del Balso 2018, section 4).
  kCoordinator,
  // Version 0.28.1 with names it has not cached (or with HOROVOD_CACHE_CAPACITY=0), with its MPI
  // controller: MPI_Gather of lengths, MPI_Gatherv of requests, MPI_Bcast of a length and the
  // responses.
  kCoordinatorMpi,
  // The same, with its Gloo controller: Gloo has no gatherv, so lengths and requests are
  // allgathered.
  kCoordinatorGloo,
  // Version 0.28.1 with names it has cached: a bitwise-and allreduce of one bit per name.
  kCachedMpi,
  kCachedGloo,
};
std::optional<HorovodScheme> horovod_scheme(std::string_view name);

struct HorovodRequests {
  size_t names = 0;
  size_t bytes = 0;           // of a rank's list of requests
  size_t response_bytes = 0;  // of the list of responses
  Nanoseconds cost = 0;       // of one request at rank 0
};

class HorovodRanks final : public Ranks {
 public:
  HorovodRanks(Network& network, HorovodScheme scheme, const HorovodRequests& requests);

  void start(int rank) override;
  void receive(int rank, const Message& message) override;

  // When the rank last learned the outcome; -1 if it has not.
  Nanoseconds agreed_at(int rank) const { return ranks_[rank].agreed_at; }

 private:
  struct Rank {
    Steps steps;
    size_t next = 0;
    bool is_started = false;
    Nanoseconds agreed_at = -1;
    std::unordered_map<int, int> arrived;  // messages not yet waited for, by sender
  };

  void proceed(int rank);

  Network& network_;
  std::vector<Rank> ranks_;
};

}  // namespace perseus::simulation
