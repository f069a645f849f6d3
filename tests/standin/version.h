// Functions that NCCL has not always had.
#pragma once

#include <string>

#include "failure.h"
#include "settings.h"

namespace perseus::standin {

// Ends the process if the NCCL that is stood in for is older.
inline void require_version(int since, const char* function) {
  if (settings().nccl_version >= since) return;
  fail("NCCL " + std::to_string(settings().nccl_version) + " has no " + function);
}

}  // namespace perseus::standin
