// What ops do.
#pragma once

#include <string>

namespace perseus::tensorflow {

// What went wrong, or "".
std::string register_kernels();

}  // namespace perseus::tensorflow
