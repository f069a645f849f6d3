// The settings that say where the engines' threads of a host run: PERSEUS_THREAD_AFFINITY and
// PERSEUS_CACHE_GROUPS.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

struct ThreadAffinity {
  bool is_automatic = false;
  std::vector<int> processors;  // by local rank
};

// kInvalidArgument if one of the two is malformed.
Status check_thread_placement(const std::string& thread_affinity, const std::string& cache_groups);

// "none" gives none, and "0,2" the processors {0, 2}. kInvalidArgument if it is malformed.
Result<ThreadAffinity> parse_thread_affinity(const std::string& text);

// The number of a cache for each local rank: "0,0,1,1". kInvalidArgument if it is malformed.
Result<std::vector<int>> parse_cache_groups(const std::string& text);

}  // namespace perseus
