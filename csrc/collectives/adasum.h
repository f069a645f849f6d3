// Adasum: a sum that turns into an average as the gradients come to point the same way.
#pragma once

#include "collectives/collective.h"

namespace perseus {

// data = Adasum of the ranks' data. `data` holds several tensors, one after the other, of as many
// elements as `tensors` says; each tensor is combined by itself. `type` must be a floating type.
//
// Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020: two gradients a and b
// become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. Neighbours are combined first, then pairs of
// neighbours, and so on. If the group's size is not a power of two, the first 2 (size - p) ranks
// are combined pairwise before that, where p is the largest power of two within it. Ranks exchange
// halves of vectors, and the ranks that hold the parts add up the products. So a rank sends about
// twice its data, whatever the group's size.
Task adasum(const Group& group, CollectiveOptions options, void* data,
            std::span<const uint64_t> tensors, DataType type);

}  // namespace perseus
