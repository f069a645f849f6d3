// How a thread cuts short a blocking call of its own: for Ctrl-C while the ranks meet, say, which
// only the caller's language can see. Each thread has its own.
#pragma once

#include <chrono>

#include "base/status.h"

namespace perseus {

// Blocking calls ask about that often.
inline constexpr std::chrono::milliseconds kInterruptionCheck{50};

// Asked by blocking calls of this thread from now on; null: nothing is asked. Once it has said yes
// the call ends soon, with interrupted_status().
using InterruptionCheck = int (*)(void* user);
void set_interruption_check(InterruptionCheck check, void* user);

bool can_be_interrupted();
bool is_interrupted();
Status interrupted_status();

}  // namespace perseus
