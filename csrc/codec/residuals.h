// Error feedback (Seide et al. 2014, "1-bit stochastic gradient descent"): the part of a gradient
// that a codec loses is added to the tensor's next gradient, so that nothing is lost over the
// steps.
//
// In a step: residuals.of(name, n), add_residual to the gradient, encode it, decode it again, and
// keep_residual of the two. Each shard of a tensor does so with its part of the tensor's residual.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace perseus {

// The residuals of all tensors. One thread at a time; different threads may use parts of the
// returned memory that do not overlap.
class Residuals {
 public:
  // Returns the tensor's residual: zeros if it is new or its number of elements has changed. Valid
  // until the next call for this name.
  std::span<float> of(std::string_view tensor, size_t elements);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::vector<float>, Hash, std::equal_to<>> residuals_;
};

// gradient[i] += residual[i]. Any thread.
void add_residual(float* gradient, const float* residual, size_t elements);

// residual[i] = gradient[i] - decoded[i], or 0 if that is not finite: one overflow must not spoil
// the element for good. `decoded` may be `residual`. Any thread.
void keep_residual(float* residual, const float* gradient, const float* decoded, size_t elements);

}  // namespace perseus
