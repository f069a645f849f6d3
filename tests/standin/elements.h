// The element types and reductions of NCCL.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace perseus::standin {

// 0: not one that Perseus uses.
size_t size_of_nccl_type(int type);
std::string name_of_nccl_type(int type);
// Null: not one that Perseus uses.
const char* name_of_nccl_op(int op);

// target = the sources reduced, from the first to the last; 16-bit floats in float32, rounded once.
// The target may be one of the sources.
// A value of a floating type.
double nccl_scalar(int type, const void* scalar);
void reduce(int type, int op, double factor, void* target, const std::vector<const void*>& sources,
            size_t count);

}  // namespace perseus::standin
