// What ops there are: their inputs, attributes and outputs, and the outputs' shapes.
#pragma once

#include <string>

namespace perseus::tensorflow {

// Before their kernels. What went wrong, or "".
std::string register_ops();

}  // namespace perseus::tensorflow
