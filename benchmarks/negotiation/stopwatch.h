// Measures real time, as opposed to the virtual ranks' time.
#pragma once

#include <chrono>

#include "network.h"

namespace perseus::simulation {

inline Nanoseconds steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace perseus::simulation
