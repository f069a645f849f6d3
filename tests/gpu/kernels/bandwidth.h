// Measures how fast the kernels pack a model's gradients, compared to the GPU's own copies.
#pragma once

#include <string>
#include <vector>

#include "kernels/gpu_memory.h"

namespace perseus::gpu_check {

struct Gradients {
  std::string name;
  std::vector<size_t> elements;  // of each tensor; float32
};

// Prints a line for each contender: its bytes (read and written) and the seconds of a pass in each
// turn. copy_bytes: of the one large copy by whose rate all others are measured; more than the
// GPU's caches hold.
void measure_bandwidth(const Machine& machine, const std::vector<Gradients>& models, int turns,
                       size_t copy_bytes);

}  // namespace perseus::gpu_check
