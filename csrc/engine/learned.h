// The lessons of an engine about its job, which outlive it. They belong to the process, and the
// next engine goes on with them: in the same job, in another world.
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
