// What an engine has learnt about its job, which outlives it. It belongs to the process, and the
// next engine goes on with it: in the same job, in another world.
#pragma once

#include "codec/residuals.h"
#include "schedule/tuning.h"

namespace perseus {

// One engine at a time uses it. The findings are its own from start to end; the residuals are for
// any thread.
struct Learned {
  Residuals residuals;
  TunerFindings tuning;
};

}  // namespace perseus
