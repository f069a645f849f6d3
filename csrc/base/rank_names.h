// Texts that name ranks, for errors.
#pragma once

#include <string>
#include <vector>

namespace perseus {

// "a", "a, b and c"; beyond sixteen "a, b, ... and 984 more".
std::string enumerate(const std::vector<std::string>& names);

// "rank 3", "ranks 2, 5 and 7", "ranks 0, 1, ... and 984 more".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace perseus
