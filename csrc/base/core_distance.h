// How far apart two processors are: the time in which a cache line that one of them has written
// comes to the other. It is some 30 ns under one last-level cache, and over 100 ns between two.
#pragma once

#include "base/status.h"

namespace perseus {

// In nanoseconds, one way. Keeps both processors busy for about a millisecond; if others compute
// there, for at most 0.2 s. kInvalidArgument if this process may not run on one of them, or if they
// are the same; kTimedOut if the two never ran at once.
Result<double> core_distance(int first, int second);

}  // namespace perseus
