// What the timeline shows of an operation's life, in Horovod's words.
#pragma once

#include "engine/operation.h"
#include "observe/timeline.h"

namespace perseus {

// The operation waits for other ranks: NEGOTIATE_ALLREDUCE, ...
void trace_negotiation(Timeline& timeline, const Operation& operation);
// It is agreed on, and runs: ends the above and begins ALLREDUCE, ... Timeline::end closes it.
void trace_start(Timeline& timeline, const Operation& operation);

}  // namespace perseus
