// The environment variables of standin.h.
#pragma once

#include <cstdint>
#include <string>

#include "standin.h"

namespace perseus::standin {

struct Settings {
  int gpus;
  bool shared;
  int driver_version;
  int runtime_version;
  int nccl_version;
  int delay_us;
  uint64_t seed;
  std::string fail;
  std::string collective;
  bool one_collective;
  int cta_policy;  // -1: any
};

// Read at the first call. Any thread.
PERSEUS_STANDIN_API const Settings& settings();

}  // namespace perseus::standin
