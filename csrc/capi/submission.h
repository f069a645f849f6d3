// From a perseus_submission_t to an Operation: everything that one rank can check by itself.
#pragma once

#include "base/recycler.h"
#include "base/status.h"
#include "engine/engine.h"
#include "perseus/perseus.h"
#include "state/names.h"

namespace perseus {

// Errors name the operation; but for what CUDA says they are kInvalidArgument. `set_ranks`: of its
// process set.
Recycler<Operation>& recycled_operations();
// Of the tensor's input; or what is wrong with it, whatever it is submitted for.
Result<int64_t> bytes_of(const perseus_tensor_t& tensor);
Status check_callback_thread(perseus_callback_thread_t thread);
Status check_membership(const Names::Entry& name, const std::vector<int>& set_ranks, int rank);
Result<OperationPtr> make_operation(const perseus_submission_t& submission,
                                    const Names::Entry& name, const std::vector<int>& set_ranks,
                                    const Engine& engine);

}  // namespace perseus
