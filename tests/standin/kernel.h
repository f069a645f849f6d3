// Which kernels there are, and what memory a launch accesses.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/moves.h"
#include "memory.h"

namespace perseus::standin {

struct Kernel {
  std::string name;
  size_t source_bytes;  // of an element
  size_t target_bytes;
};

// Returns nothing if Perseus has no kernel of that name.
std::optional<Kernel> kernel_of(std::string_view name);

std::vector<Access> accesses_of(const Kernel& kernel, const MoveTable& table);

}  // namespace perseus::standin
