// The algorithms behind allreduce(). Arguments as there; groups of at least two ranks and at least
// one element.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/collective.h"
#include "collectives/parts.h"

namespace perseus {

// Every rank to every rank. Small buffers in one hop: all send all to all, and everyone reduces.
// Others in two: each rank reduces one part, and sends the result to all.
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
// host: each byte crosses between hosts as seldom as it can. Needs group.by_host.
Task allreduce_hierarchical(const Group& group, CollectiveOptions options, const void* in,
                            void* out, size_t elements, DataType type, ReduceOp op, double factor);

// The first half of the direct algorithm: out = factor * the reduction of this rank's part,
// parts[index].
// `out` must not overlap `in` but for being exactly that part of it.
Task reduce_scatter_direct(const Group& group, CollectiveOptions options, const void* in, void* out,
                           std::span<const Range> parts, DataType type, ReduceOp op, double factor);

// What of `factor` is to be applied to the inputs of `ranks` ranks, or to their sum before it is
// rounded to `type`: enough that no such sum leaves the range of float16 where the result does not.
double early_factor(DataType type, ReduceOp op, double factor, int ranks);

}  // namespace perseus
