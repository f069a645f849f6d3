// Allreduce of float32 through a codec.
#pragma once

#include "codec/codec.h"
#include "collectives/collective.h"

namespace perseus {

// data = sum over ranks of data, sent in encoded form. Each rank encodes part j of its data for
// rank j. Rank j decodes and adds the parts in index order, encodes the sum and sends it to all. It
// decodes that sum itself too, so that all ranks hold the same bits. If `lost` is not null, the
// error of encoding this rank's own data is stored there: data - decode(encode(data)).
Task coded_allreduce(const Group& group, CollectiveOptions options, float* data, size_t elements,
                     const Codec& codec, float* lost);

}  // namespace perseus
