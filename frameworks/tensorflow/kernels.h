// The kernels of the ops.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Returns "", or what went wrong.
std::string register_kernels();

}  // namespace perseus::tensorflow
