// The part of an engine that outlives it: its lessons about its job, and its links. They belong to
// the process, and the next engine goes on with them: in the same job, in another world.
#pragma once

#include "codec/residuals.h"
#include "schedule/tuning.h"
#include "transport/kept_links.h"

namespace perseus {

// One engine at a time uses it. The findings and the links are its own from start to end; the
// residuals are for any thread.
struct Learned {
  Residuals residuals;
  TunerFindings tuning;
  KeptLinks links;  // only in an elastic job
};

}  // namespace perseus
