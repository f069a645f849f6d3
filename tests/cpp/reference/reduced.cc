#include "reference/reduced.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

namespace perseus {

const std::vector<Elements>& inputs_of(int ranks, DataType type, size_t elements) {
  static std::mutex mutex;
  static std::map<std::tuple<int, DataType, size_t>, std::vector<Elements>> drawn;
  const std::lock_guard lock(mutex);
  std::vector<Elements>& inputs = drawn[{ranks, type, elements}];
  for (int rank = static_cast<int>(inputs.size()); rank < ranks; ++rank) {
    inputs.emplace_back(type, elements, 100 + rank);
  }
  return inputs;
}

Expected expected_reduction(const std::vector<Elements>& inputs, DataType type, ReduceOp op,
                            size_t i) {
  Expected expected{inputs[0][i], std::abs(inputs[0][i])};
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const double value = inputs[rank][i];
    switch (op) {
      case ReduceOp::kMin: expected.value = std::min(expected.value, value); break;
      case ReduceOp::kMax: expected.value = std::max(expected.value, value); break;
      case ReduceOp::kProduct:
        expected.value *= value;
        expected.magnitude = std::abs(expected.value);
        break;
      default: expected.value += value; expected.magnitude += std::abs(value);
    }
  }
  if (type == DataType::kBool) expected.value = std::min(expected.value, 1.0);
  return expected;
}

double tolerance(DataType type, const Expected& expected, ReduceOp op, int roundings) {
  if (!is_floating(type) || op == ReduceOp::kMin || op == ReduceOp::kMax) return 0;
  const FloatFormat format = format_of(type);
  return roundings * (std::ldexp(expected.magnitude, -format.precision) +
                      std::ldexp(1.0, format.smallest - format.precision));
}

size_t first_wrong(const Elements& result, const std::vector<Elements>& inputs, size_t offset,
                   DataType type, ReduceOp op, int roundings) {
  const std::vector<double> values = result.values();
  for (size_t i = 0; i < values.size(); ++i) {
    const Expected expected = expected_reduction(inputs, type, op, offset + i);
    const double error = std::abs(values[i] - expected.value);
    if (!(error <= tolerance(type, expected, op, roundings))) return i;
  }
  return values.size();
}

}  // namespace perseus
