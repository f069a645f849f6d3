// Inputs of every rank and the expected result of their reduction, in float64.
#pragma once

#include <vector>

#include "base/types.h"
#include "reference/elements.h"

namespace perseus {

// Drawn once and kept, since drawing them takes longer than reducing them. Any thread.
const std::vector<Elements>& inputs_of(int ranks, DataType type, size_t elements);

struct Expected {
  double value;
  double magnitude;  // rounding errors are relative to this
};
Expected expected_reduction(const std::vector<Elements>& inputs, DataType type, ReduceOp op,
                            size_t i);

// The largest error that `roundings` roundings to the type may add up to.
double tolerance(DataType type, const Expected& expected, ReduceOp op, int roundings);

// Returns the first element of `result` that differs by more than `roundings` roundings from the
// reduction of the inputs' elements, beginning with `offset`; result.size() if there is none.
size_t first_wrong(const Elements& result, const std::vector<Elements>& inputs, size_t offset,
                   DataType type, ReduceOp op, int roundings);

}  // namespace perseus
