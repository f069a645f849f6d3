// Where the engines' threads of a machine run, and which ranks thereby share a last-level cache.
// Every rank derives it from all ranks' cards, so that all come to the same result.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/topology.h"

namespace perseus {

struct AddressCard;

// Sets `engine_processors` and `cache_of` of the topology. `cache_groups`: the setting, which takes
// the place of what the cards say of caches. kInvalidArgument if it has too few numbers.
Status place_engines(const std::vector<AddressCard>& cards, const std::string& cache_groups,
                     Topology& topology);

}  // namespace perseus
