// Parses Slurm's variables.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perseus {

// The first host of a node list in Slurm's notation: "node[01-04,7],gpu3" gives "node01". Slurm
// starts task 0 there.
Result<std::string> first_slurm_host(std::string_view node_list);

}  // namespace perseus
