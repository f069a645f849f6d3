#include "codec/residuals.h"

#include <cmath>
#include <limits>

namespace perseus {

std::span<float> Residuals::of(std::string_view tensor, size_t elements) {
  auto found = residuals_.find(tensor);
  if (found == residuals_.end()) {
    found = residuals_.emplace(tensor, std::vector<float>(elements)).first;
  } else if (found->second.size() != elements) {
    found->second.assign(elements, 0.0f);
  }
  return found->second;
}

void add_residual(float* gradient, const float* residual, size_t elements) {
  for (size_t i = 0; i < elements; ++i) gradient[i] += residual[i];
}

void keep_residual(float* residual, const float* gradient, const float* decoded, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    const float lost = gradient[i] - decoded[i];
    residual[i] = std::fabs(lost) <= std::numeric_limits<float>::max() ? lost : 0.0f;
  }
}

}  // namespace perseus
