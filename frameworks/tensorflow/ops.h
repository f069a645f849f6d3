// The ops: their inputs, attributes and outputs, and the outputs' shapes.
#pragma once

#include <string>

namespace perseus::tensorflow {

// To be called before register_kernels. Returns "", or what went wrong.
std::string register_ops();

}  // namespace perseus::tensorflow
