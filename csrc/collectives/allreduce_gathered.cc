// Reduces in the order of the algorithm that would otherwise have moved these inputs, so that both
// compute the same bits.
#include "base/buffer_pool.h"
#include "collectives/allreduce_algorithms.h"
#include "collectives/folding.h"
#include "collectives/reduce_in_order.h"
#include "collectives/scratch_array.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

// As in recursive doubling: pairs first, then larger and larger blocks of neighbours, with the
// lower block on the left. `blocks` holds one for each index; the first becomes the result.
void reduce_doubling(std::byte* blocks, size_t block_bytes, size_t elements, int size,
                     const Reduction& reduction) {
  const auto block = [&](int index) { return blocks + block_bytes * index; };
  const Folding folding(size);
  for (int index = 0; index < size; ++index) {
    if (folding.sits_out(index)) reduction.kernel(block(index - 1), block(index), elements);
  }
  for (int mask = 1; mask < folding.power(); mask <<= 1) {
    for (int id = 0; id < folding.power(); id += 2 * mask) {
      reduction.kernel(block(folding.index_of(id)), block(folding.index_of(id + mask)), elements);
    }
  }
}

}  // namespace

Status allreduce_gathered(const Group& group, BufferPool& buffers,
                          std::span<const std::byte> inputs, void* out, size_t elements,
                          DataType type, ReduceOp op, double factor) {
  if (group.size == 1) {
    scale(out, inputs.data(), elements, type, factor);
    return {};
  }
  const DataType wide_type = accumulator_type(type);
  const size_t bytes = elements * size_of(type);
  const size_t wide_bytes = elements * size_of(wide_type);
  const bool is_direct = choose_allreduce(group, bytes) == AllreduceAlgorithm::kDirect;
  const size_t scratch_bytes = is_direct ? wide_bytes : wide_bytes * group.size;
  const Buffer scratch = buffers.take(scratch_bytes);
  if (!scratch) return out_of_scratch(scratch_bytes);
  if (is_direct) {
    reduce_in_order(scratch.data(), group.size, elements, type, op,
                    [&](int index) { return inputs.data() + bytes * index; });
  } else {
    convert(scratch.data(), wide_type, inputs.data(), type, elements * group.size);
    reduce_doubling(scratch.data(), wide_bytes, elements, group.size, reduction(wide_type, op));
  }
  scale_convert(out, type, scratch.data(), wide_type, elements, factor);
  return {};
}

}  // namespace perseus
