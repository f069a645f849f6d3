// Waiting for an operation, as perseus.h specifies it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "perseus/perseus.h"
#include "state/operation.h"

namespace perseus {

// Returns whether the time-out bounds a wait. Negative ones do not, nor do those of a century and
// more, which would overflow as nanoseconds.
bool is_bound(int64_t time_out_ms);
// kInvalidArgument in a callback, which would wait for itself; it may wait with a time-out of 0.
Status check_may_wait(int64_t time_out_ms);
// Returns the operation's status when it is done; kInProgress if the time ends first. Any thread;
// see check_may_wait.
Status wait_for(Operation& operation, int64_t time_out_ms);
// The same, except that a CUDA stream waits for the results.
Status wait_on_stream(Operation& operation, void* stream, int64_t time_out_ms);
// The error for a handle that stands for no operation.
Status unknown_handle(perseus_handle_t handle);

}  // namespace perseus
