// Memory for results, and how large they are.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "state/operation.h"

namespace perseus {

// The shapes of results that are known before the operation runs, and memory for those that the
// caller left to the library. kOutOfMemory if there is none.
Status allocate_outputs(Operation& operation, int set_size, int set_index);
// The same for one tensor whose size is known by now; on a GPU, in its context.
Status allocate_output(OperationTensor& tensor, uint64_t bytes);
Status allocate_output(OperationTensor& tensor, uint64_t bytes, Gpu& gpu);

// The shape of a result whose first dimension is known by now.
void set_result_rows(OperationTensor& tensor, const TensorDescription& agreed, int64_t rows);

// Rows of a first dimension of `rows` that fall to `index` of `size`: as even as can be, the first
// ones take one more (Horovod's rule for reduce-scatter).
int64_t rows_of(int64_t rows, int size, int index);
// Bytes of one row of the first dimension.
uint64_t row_bytes(const TensorDescription& tensor);

}  // namespace perseus
