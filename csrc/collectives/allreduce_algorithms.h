// The algorithms behind allreduce(). They take the same arguments, a group of at least two ranks
// and at least one element.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/collective.h"
#include "collectives/parts.h"

namespace perseus {

// Every rank sends to every rank. Small buffers take one hop: each rank sends its whole input to
// all and reduces by itself. Others take two: each rank reduces one part, and sends the result to
// all.
Task allreduce_direct(const Group& group, CollectiveOptions options, const void* in, void* out,
                      size_t elements, DataType type, ReduceOp op, double factor);

// log2(size) hops of the whole buffer (Thakur, Rabenseifner and Gropp 2005, section 4.4): for small
// buffers in large groups.
Task allreduce_recursive_doubling(const Group& group, CollectiveOptions options, const void* in,
                                  void* out, size_t elements, DataType type, ReduceOp op,
                                  double factor);

// 2 (size - 1) hops of a size-th of the buffer, to the next rank only (Patarasuk and Yuan 2009):
// for large buffers in large groups. 16-bit floats are rounded at each hop of the first half.
Task allreduce_ring(const Group& group, CollectiveOptions options, const void* in, void* out,
                    size_t elements, DataType type, ReduceOp op, double factor);

// Reduce-scatter inside each host, allreduce of each part between the hosts, allgather inside each
// host: each byte crosses between hosts as rarely as possible. The same for caches inside a host.
// Needs levels_of(group).
Task allreduce_hierarchical(const Group& group, CollectiveOptions options, const void* in,
                            void* out, size_t elements, DataType type, ReduceOp op, double factor);

// The first half of the direct algorithm: out = factor * the reduction of this rank's part,
// parts[index].
// `out` must not overlap `in`, unless it is exactly that part of it.
Task reduce_scatter_direct(const Group& group, CollectiveOptions options, const void* in, void* out,
                           std::span<const Range> parts, DataType type, ReduceOp op, double factor);

// The part of `factor` to apply to the inputs of `ranks` ranks, or to their sum before it is
// rounded to `type`. It keeps partial sums within the range of float16 if the result is within it.
double early_factor(DataType type, ReduceOp op, double factor, int ranks);

}  // namespace perseus
