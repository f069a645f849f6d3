// Verdicts on agreed operations: the same on every rank, since they rest on what all ranks know.
#pragma once

#include <vector>

#include "base/status.h"
#include "negotiation/agreement.h"

namespace perseus {

// Mistakes that are seen only once an operation is agreed on; the same verdict on every rank.
// `joined`: ranks that take part without having submitted.
Status check_agreed(const Agreement::Ready& ready, const std::vector<int32_t>& joined);

}  // namespace perseus
