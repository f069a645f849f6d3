// Allreduce of float32 through a codec.
#pragma once

#include "codec/codec.h"
#include "collectives/collective.h"

namespace perseus {

// data = sum over ranks of data, where what travels is encoded: each rank encodes part j of its
// data for rank j; rank j decodes and adds the parts in index order, encodes the sum and gives it
// to all, itself included, so that all ranks hold the same bits. If `lost` is not null, it takes
// what the encoding of this rank's own data lost: data - decode(encode(data)).
Task coded_allreduce(const Group& group, CollectiveOptions options, float* data, size_t elements,
                     const Codec& codec, float* lost);

}  // namespace perseus
