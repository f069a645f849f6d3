// Pins the engines' threads of a host to processors (PERSEUS_THREAD_AFFINITY).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

// The processors in the setting's list, by local rank: "0,2" gives {0, 2}. kInvalidArgument if it
// is malformed.
Result<std::vector<int>> parse_processors(const std::string& list);

// Pins the calling thread to this processor; logs a warning if there is none.
void pin_thread(int processor);

}  // namespace perseus
