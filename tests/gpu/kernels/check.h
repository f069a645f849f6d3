// Checks that the kernels, on the GPU that is there, give the same bits as those of the CPU.
#pragma once

#include <cstdint>

#include "kernels/gpu_memory.h"

namespace perseus::gpu_check {

struct CheckOptions {
  uint64_t seed = 0;
  // How many random pairs of alignments to check for each pair of types; 0: all of them.
  int alignments = 0;
  int rounds = 40;       // of the searches for NaN, for each pair of types
  bool is_huge = false;  // runs of more than 2^32 elements, where there is the memory
};

// Prints a line for each part. Ends the program at the first difference.
void check_kernels(const Machine& machine, const CheckOptions& options);

}  // namespace perseus::gpu_check
