// Lets a thread interrupt its own blocking calls: on Ctrl-C while the ranks meet, for example,
// which only the caller's language can see. Each thread has its own check.
#pragma once

#include <chrono>

#include "base/status.h"

namespace perseus {

// About how often blocking calls check.
inline constexpr std::chrono::milliseconds kInterruptionCheck{50};

// Blocking calls of this thread call `check` from now on (null: no check). Once it has returned
// nonzero, the call soon ends with interrupted_status().
using InterruptionCheck = int (*)(void* user);
void set_interruption_check(InterruptionCheck check, void* user);

bool can_be_interrupted();
bool is_interrupted();
Status interrupted_status();

}  // namespace perseus
