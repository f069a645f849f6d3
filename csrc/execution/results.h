// The shapes and sizes of results, and memory for them.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "state/operation.h"

namespace perseus {

// Sets the shapes of results that are known before the operation runs, and allocates those whose
// memory the caller left to the library. Returns kOutOfMemory if there is no memory.
Status allocate_outputs(Operation& operation, int set_size, int set_index);
// Allocates the result of one tensor. On a GPU: call in the GPU's context.
// Takes the memory that the caller has offered, if it has this size, or else allocates some.
Status allocate_output(OperationTensor& tensor, uint64_t bytes);
Status allocate_output(OperationTensor& tensor, uint64_t bytes, Gpu& gpu);

// Sets the shape of a result whose first dimension has become known.
void set_result_rows(OperationTensor& tensor, const TensorDescription& agreed, int64_t rows);

// How many of `rows` rows rank `index` of `size` gets: as even as possible, where the first ranks
// take one more (Horovod's rule for reduce-scatter).
int64_t rows_of(int64_t rows, int size, int index);
// Bytes of one row of the first dimension.
uint64_t row_bytes(const TensorDescription& tensor);

}  // namespace perseus
