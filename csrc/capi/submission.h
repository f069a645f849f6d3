// From a perseus_submission_t to an Operation: everything that one rank can check by itself.
#pragma once

#include "base/status.h"
#include "engine/engine.h"
#include "engine/names.h"
#include "perseus/perseus.h"

namespace perseus {

// `set_ranks`: of the operation's process set. Errors are kInvalidArgument (kUnsupported for what
// no version of the call could do) and name the operation.
Result<OperationPtr> make_operation(const perseus_submission_t& submission,
                                    const Names::Entry& name, const std::vector<int>& set_ranks,
                                    int rank);

}  // namespace perseus
