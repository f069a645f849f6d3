// Ties the residuals of codecs with error feedback to operations: the name under which an
// operation's tensor has its residual, and the operation's end. Engine thread.
#pragma once

#include <string>

#include "execution/batch.h"

namespace perseus {

// The residual of a piece's elements. Empty if this rank has not submitted the operation: it has no
// gradient of its own to which the residual would belong.
Residuals::Parts residual_of(ShardRun& run, const RunContext& context, const Piece& piece);

// Call when all shards of an operation of the batch have ended. `name`: memory to use.
void end_error_feedback(const Batch& batch, uint32_t operation, const RunContext& context,
                        bool is_ok, std::string& name);

}  // namespace perseus
