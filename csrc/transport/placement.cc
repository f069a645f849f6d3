#include "transport/placement.h"

#include <algorithm>
#include <cstdint>

#include "base/thread_placement.h"
#include "transport/address_card.h"

namespace perseus {
namespace {

// A malformed setting has been refused by its own rank.
ThreadAffinity affinity_of(const AddressCard& card) {
  const auto affinity = parse_thread_affinity(card.thread_affinity);
  return affinity.is_ok() ? affinity.value() : ThreadAffinity();
}

// The ranks of a machine that may run on the same processors divide these evenly, in order of rank
// and of caches: the threads of two engines do not run on the same processor, and neighbours have a
// cache in common. None if that is all that the process may run on, as where a launcher has bound
// each rank.
Processors automatic_choice(const std::vector<AddressCard>& cards, int rank) {
  const AddressCard& own = cards[rank];
  int64_t before = 0, ranks = 0;
  for (int other = 0; other < static_cast<int>(cards.size()); ++other) {
    const AddressCard& card = cards[other];
    if (card.machine != own.machine || card.processors != own.processors) continue;
    if (!affinity_of(card).is_automatic) continue;
    before += other < rank;
    ++ranks;
  }
  const int64_t all = own.processors.count();
  const int64_t begin = before * all / ranks;
  const int64_t end = std::max(begin + 1, (before + 1) * all / ranks);
  Processors share;
  int64_t place = 0;
  for (const Processors& cache : own.caches.empty() ? std::vector{own.processors} : own.caches) {
    for (int processor = 0; processor < own.processors.end(); ++processor) {
      if (!cache.contains(processor) || !own.processors.contains(processor)) continue;
      if (begin <= place && place < end) share.add(processor);
      ++place;
    }
  }
  return share == own.processors ? Processors() : share;
}

// The processors that the engine's thread of a rank is to be bound to, if any.
Processors wanted_processors(const std::vector<AddressCard>& cards, const Topology& topology,
                             int rank) {
  const ThreadAffinity affinity = affinity_of(cards[rank]);
  if (affinity.is_automatic) return automatic_choice(cards, rank);
  const auto local_rank = static_cast<size_t>(topology.local_rank_of(rank));
  Processors wanted;
  if (local_rank < affinity.processors.size()) wanted.add(affinity.processors[local_rank]);
  return wanted;
}

int cache_of(const std::vector<AddressCard>& cards, const Topology& topology, int rank) {
  const Processors bound = wanted_processors(cards, topology, rank);
  const Processors& runs_on = bound.is_empty() ? cards[rank].processors : bound;
  if (runs_on.is_empty()) return Topology::kNotKnown;
  for (const Processors& cache : cards[rank].caches) {
    if (cache.contains_all(runs_on)) return cache.lowest();
  }
  return Topology::kNotKnown;
}

}  // namespace

Status place_engines(const std::vector<AddressCard>& cards, const std::string& cache_groups,
                     Topology& topology) {
  const auto given = parse_cache_groups(cache_groups);
  if (!given.is_ok()) return given.status();
  const std::vector<int>& numbers = given.value();
  topology.engine_processors = wanted_processors(cards, topology, topology.rank);
  topology.cache_of.assign(topology.size, Topology::kNotKnown);
  for (int rank = 0; rank < topology.size; ++rank) {
    const auto local_rank = static_cast<size_t>(topology.local_rank_of(rank));
    if (!numbers.empty() && local_rank >= numbers.size()) {
      return Status::invalid_argument("PERSEUS_CACHE_GROUPS is '" + cache_groups +
                                      "', and there is no number in it for " + topology.name(rank) +
                                      "; it must have one for each rank of a host");
    }
    if (topology.host_of[rank] != topology.host_of[topology.rank]) continue;
    topology.cache_of[rank] =
        numbers.empty() ? cache_of(cards, topology, rank) : numbers[local_rank];
  }
  return {};
}

}  // namespace perseus
