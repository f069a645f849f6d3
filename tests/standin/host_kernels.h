// The GPU's kernels, compiled for the host. The stand-in for CUDA runs them when they are launched.
#pragma once

#include <string_view>

#include "device/cuda/moves.h"

namespace perseus::standin {

// Returns whether there is a kernel of this name, "perseus_copy" or "perseus_move_...".
bool has_kernel(std::string_view name);

// Runs all blocks of the table on the calling thread, with host pointers. Does nothing and returns
// false if there is no kernel of this name.
bool run_kernel(std::string_view name, const MoveTable& table);

}  // namespace perseus::standin
