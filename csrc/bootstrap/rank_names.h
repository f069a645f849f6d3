// Ranks in error texts.
#pragma once

#include <string>
#include <vector>

namespace perseus {

// "rank 3", "ranks 2, 5 and 7", "ranks 0, 1, ... and 984 more": a list of a thousand helps nobody.
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace perseus
