// Reduces inputs that are all in this rank's memory, in the same order on every rank: from rank 0
// up.
#pragma once

#include <cstddef>

#include "base/types.h"
#include "device/cpu/kernels.h"

namespace perseus {

// `accumulator` holds elements of accumulator_type(type). input_of(index) returns a rank's input.
template <typename InputOf>
void reduce_in_order(void* accumulator, int size, size_t elements, DataType type, ReduceOp op,
                     InputOf input_of) {
  const Reduction reduction = wide_reduction(type, op);
  convert(accumulator, accumulator_type(type), input_of(0), type, elements);
  for (int index = 1; index < size; ++index) {
    reduction.kernel(accumulator, input_of(index), elements);
  }
}

}  // namespace perseus
