// Small operations whose inputs have come with the agreement (negotiation/piggyback.h): what goes
// with it, and the result. Engine thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "execution/batch.h"

namespace perseus {

// Returns what this rank's ballot may take along for the operation, the same size on all ranks, or
// nothing if the operation is not of that kind. Uses `scratch` for what is not in the operation's
// memory as it is.
std::span<const std::byte> input_for_agreement(const Operation& operation,
                                               const RunContext& context,
                                               std::vector<std::byte>& scratch);

// Stores the result of the batch's only operation. `inputs` has what every rank's ballot took
// along, by index in the set.
Status run_gathered(const Batch& batch, const RunContext& context,
                    std::span<const std::byte> inputs);

}  // namespace perseus
