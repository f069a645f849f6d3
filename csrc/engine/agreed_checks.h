// Checks of agreed operations. The result is the same on every rank, since it depends only on what
// all ranks know.
#pragma once

#include <vector>

#include "base/status.h"
#include "negotiation/agreement.h"

namespace perseus {

// Returns an error for a mistake that is not reported until the operation is agreed on, so that all
// ranks report it together. `joined`: ranks that take part without having submitted.
Status check_agreed(const Agreement::Ready& ready, const std::vector<int32_t>& joined);

}  // namespace perseus
