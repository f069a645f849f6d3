// Adasum: a sum that turns into an average as the gradients come to point the same way.
#pragma once

#include "collectives/collective.h"

namespace perseus {

// data = Adasum of the ranks' data, which holds tensors of these many elements one after the other;
// each is combined for itself. A floating type.
//
// Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020: two gradients a and b
// become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. Neighbours are combined first, then pairs of
// neighbours, and so on; with p the largest power of two within the group, the first 2 (size - p)
// ranks are combined pairwise before that. Halves of vectors are exchanged, and the products summed
// over the ranks that hold the parts, so that a rank sends about twice its data, whatever the size.
Task adasum(const Group& group, CollectiveOptions options, void* data,
            std::span<const uint64_t> tensors, DataType type);

}  // namespace perseus
