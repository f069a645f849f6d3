#include "engine/timeline_names.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace perseus {
namespace {

std::string activity(OperationKind kind) {
  std::string name(to_string(kind));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

// {"dtype": "float32", "shape": "[3, 4]"} of the first tensor.
std::string arguments(const Description& description) {
  if (description.tensors.empty()) return {};
  const TensorDescription& tensor = description.tensors.front();
  std::string text = "{\"dtype\": \"" + std::string(to_string(tensor.dtype)) + "\", \"shape\": \"[";
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    text += (d ? ", " : "") + std::to_string(tensor.shape[d]);
  }
  return text + "]\", \"tensors\": " + std::to_string(description.tensors.size()) + "}";
}

}  // namespace

void trace_negotiation(Timeline& timeline, const Operation& operation) {
  timeline.begin(operation.name(), "NEGOTIATE_" + activity(operation.description.kind));
}

void trace_start(Timeline& timeline, const Operation& operation) {
  timeline.end(operation.name());
  timeline.begin(operation.name(), activity(operation.description.kind), -1,
                 arguments(operation.description));
}

}  // namespace perseus
