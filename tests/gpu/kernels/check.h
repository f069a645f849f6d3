// Whether the kernels, on the GPU that is there, do to the bit what those of the CPU do.
#pragma once

#include <cstdint>

#include "kernels/gpu_memory.h"

namespace perseus::gpu_check {

struct CheckOptions {
  uint64_t seed = 0;
  // Pairs of alignments that are drawn for each pair of types; 0: all that there are.
  int alignments = 0;
  int rounds = 40;       // of the searches for NaN, for each pair of types
  bool is_huge = false;  // runs of more than 2^32 elements, where there is the memory
};

// Prints a line for each part. Ends the program at the first difference.
void check_kernels(const Machine& machine, const CheckOptions& options);

}  // namespace perseus::gpu_check
