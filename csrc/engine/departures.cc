#include "engine/departures.h"

namespace perseus {

bool Departures::has_failed(int rank) const {
  const auto found = by_rank_.find(rank);
  return found != by_rank_.end() && !found->second.why.empty();
}

Broken Departures::news_of(int rank) const {
  const auto leaving = by_rank_.find(rank);
  std::string why = rank == topology_.rank ? own_reason_ : "";
  if (leaving != by_rank_.end()) why = leaving->second.why;
  const std::string name = topology_.name(rank);
  if (!why.empty()) return {rank, name + " has ended: " + why, true};
  return {rank,
          name +
              " has shut down or ended, so operations with it cannot complete: look at what "
              "that rank printed, and let every rank submit the same operations before it "
              "shuts down, or call join() once its data has ended",
          true};
}

// The rank that went first: others have left because of it.
Broken Departures::news_of_first(const ProcessSet& set) const {
  const int rank = set.departed;
  if (contains(rank)) return news_of(rank);
  return {rank, topology_.name(rank) + " has closed process set " + std::to_string(set.id), true};
}

}  // namespace perseus
