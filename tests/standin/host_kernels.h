// The GPU's kernels, compiled for the host: what a stand-in for CUDA runs when one is launched.
#pragma once

#include <string_view>

#include "device/cuda/moves.h"

namespace perseus::standin {

// Whether there is a kernel of this name, "perseus_copy" or "perseus_move_...".
bool has_kernel(std::string_view name);

// Runs all blocks of the table, in the calling thread. Pointers are the host's. False, and nothing
// done, if there is no kernel of this name.
bool run_kernel(std::string_view name, const MoveTable& table);

}  // namespace perseus::standin
