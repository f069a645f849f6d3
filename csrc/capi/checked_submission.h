// Makes an Operation of a perseus_submission_t, and checks everything that one rank can check
// alone.
#pragma once

#include "base/recycler.h"
#include "base/status.h"
#include "engine/engine.h"
#include "perseus/perseus.h"
#include "state/names.h"

namespace perseus {

Recycler<Operation>& recycled_operations();
// Returns the bytes of the tensor, or what is wrong with it, whatever it is submitted for.
// `memory`: how errors call its `input`.
Result<int64_t> bytes_of(const perseus_tensor_t& tensor, const char* memory = "input");
Status check_callback_thread(perseus_callback_thread_t thread);

// `set_ranks`: the ranks of the operation's process set, ascending. Errors name the operation; they
// are kInvalidArgument except for what CUDA reports.
Status check_membership(const Names::Entry& name, const std::vector<int>& set_ranks, int rank);
Result<OperationPtr> make_operation(const perseus_submission_t& submission,
                                    const Names::Entry& name, const std::vector<int>& set_ranks,
                                    const Engine& engine);

}  // namespace perseus
