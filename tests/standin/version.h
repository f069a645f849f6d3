// Functions that old versions of NCCL lack.
#pragma once

#include <string>

#include "failure.h"
#include "settings.h"

namespace perseus::standin {

// Ends the process if the version of NCCL that is simulated is older.
inline void require_version(int since, const char* function) {
  if (settings().nccl_version >= since) return;
  fail("NCCL " + std::to_string(settings().nccl_version) + " has no " + function);
}

}  // namespace perseus::standin
