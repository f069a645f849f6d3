#include "horovod_ranks.h"

#include <array>
#include <utility>

namespace perseus::simulation {
namespace {

constexpr size_t kLength = sizeof(int32_t);
constexpr size_t kStatusBits = 4;  // beside those of names (response_cache.h)

Steps steps_of(HorovodScheme scheme, const HorovodRequests& requests, int rank, int size) {
  const auto work = static_cast<Nanoseconds>(requests.names) * requests.cost;
  const size_t words = (requests.names + kStatusBits + 63) / 64;
  Steps steps;
  switch (scheme) {
    case HorovodScheme::kCoordinator:
      linear_gather(rank, size, requests.bytes, work, steps);
      linear_broadcast(rank, size, requests.response_bytes, steps);
      break;
    case HorovodScheme::kCoordinatorMpi:
      binomial_gather(rank, size, kLength, steps);
      linear_gather(rank, size, requests.bytes, work, steps);
      binomial_broadcast(rank, size, kLength, steps);
      binomial_broadcast(rank, size, requests.response_bytes, steps);
      break;
    case HorovodScheme::kCoordinatorGloo:
      ring_allgather(rank, size, kLength, steps);
      ring_allgather(rank, size, requests.bytes, steps);
      if (rank == 0) steps.push_back(work_for(work * (size - 1)));
      binomial_broadcast(rank, size, kLength, steps);
      binomial_broadcast(rank, size, requests.response_bytes, steps);
      break;
    case HorovodScheme::kCachedMpi:
      recursive_doubling_allreduce(rank, size, words * sizeof(uint64_t), steps);
      break;
    case HorovodScheme::kCachedGloo: ring_allreduce(rank, size, words, steps); break;
  }
  return steps;
}

}  // namespace

std::optional<HorovodScheme> horovod_scheme(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, HorovodScheme>, 5> kSchemes = {{
      {"coordinator", HorovodScheme::kCoordinator},
      {"coordinator-mpi", HorovodScheme::kCoordinatorMpi},
      {"coordinator-gloo", HorovodScheme::kCoordinatorGloo},
      {"cached-mpi", HorovodScheme::kCachedMpi},
      {"cached-gloo", HorovodScheme::kCachedGloo},
  }};
  for (const auto& [scheme_name, scheme] : kSchemes) {
    if (scheme_name == name) return scheme;
  }
  return std::nullopt;
}

HorovodRanks::HorovodRanks(Network& network, HorovodScheme scheme, const HorovodRequests& requests)
    : network_(network), ranks_(network.size()) {
  for (int rank = 0; rank < network.size(); ++rank) {
    ranks_[rank].steps = steps_of(scheme, requests, rank, network.size());
  }
}

void HorovodRanks::start(int rank) {
  ranks_[rank].is_started = true;
  ranks_[rank].next = 0;
  ranks_[rank].agreed_at = -1;
  proceed(rank);
}

void HorovodRanks::receive(int rank, const Message& message) {
  ranks_[rank].arrived[message.from] += 1;
  if (ranks_[rank].is_started) proceed(rank);
}

void HorovodRanks::proceed(int rank) {
  Rank& self = ranks_[rank];
  for (; self.next < self.steps.size(); ++self.next) {
    const Step& step = self.steps[self.next];
    switch (step.kind) {
      case Step::Kind::kSend: network_.send({rank, step.peer, step.bytes, {}}); break;
      case Step::Kind::kReceive: {
        const auto arrived = self.arrived.find(step.peer);
        if (arrived == self.arrived.end()) return;
        if (--arrived->second == 0) self.arrived.erase(arrived);
        break;
      }
      case Step::Kind::kWork: network_.spend(rank, step.work); break;
    }
  }
  self.is_started = false;
  self.agreed_at = network_.now(rank);
}

}  // namespace perseus::simulation
