// Decides which calls fail and which collectives never end, by the environment and by
// perseus_standin_fail and similar functions.
#pragma once

#include "standin.h"

namespace perseus::standin {

// Counts a call of the function; returns the code that it must return, or 0. Any thread.
PERSEUS_STANDIN_API int injected(const char* function);

struct CollectiveFault {
  bool hangs = false;
  int error = 0;  // the communicator's while it hangs
};

// Counts a launch of a collective. Any thread.
PERSEUS_STANDIN_API CollectiveFault injected_collective();

}  // namespace perseus::standin
