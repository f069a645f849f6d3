// Which calls fail and which collectives never end, by the environment and by perseus_standin_fail
// and its like.
#pragma once

#include "standin.h"

namespace perseus::standin {

// Counts a call of the function; the code it is to give, or 0. Any thread.
PERSEUS_STANDIN_API int injected(const char* function);

struct CollectiveFault {
  bool hangs = false;
  int error = 0;  // of the communicator meanwhile
};

// Counts a launch of a collective. Any thread.
PERSEUS_STANDIN_API CollectiveFault injected_collective();

}  // namespace perseus::standin
