// The element types and reductions of NCCL.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace perseus::standin {

// 0 if Perseus does not use the type.
size_t size_of_nccl_type(int type);
std::string name_of_nccl_type(int type);
// Null if Perseus does not use it.
const char* name_of_nccl_op(int op);

// Reduces the sources, from the first to the last, into the target, which may be one of them.
// 16-bit floats are reduced in float32 and rounded once. A value of a floating type.
double nccl_scalar(int type, const void* scalar);
void reduce(int type, int op, double factor, void* target, const std::vector<const void*>& sources,
            size_t count);

}  // namespace perseus::standin
