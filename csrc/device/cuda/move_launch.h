// Queues the kernels that move elements on a GPU: the launching side of moves_kernels.inc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "device/cuda/driver.h"

namespace perseus {

// One run of elements.
struct Move {
  const void* source;
  void* target;  // may equal the source, if the types do; else they do not overlap
  size_t elements;
  uint32_t index;  // of its word where the sources are searched
};

// For NaN and infinity.
struct NonFiniteSearch {
  // A word for each index of the moves, in memory that the GPU reaches, each kNothingFound or what
  // earlier launches found; see found_word. Null: not searched.
  unsigned long long* words = nullptr;
  bool puts_zeros = false;  // in the targets, in place of what is found
};

// The kernels of one context, loaded into it. Immutable: any thread on which that context is the
// current one.
class MoveKernels {
 public:
  // Loads them into the calling thread's current context, which keeps them until it ends.
  // image: kernels_image(). kUnsupported if it is empty.
  static Result<std::unique_ptr<MoveKernels>> load(const CudaDriver& driver,
                                                   std::span<const std::byte> image);

  // Queues on the stream: target[i] = to(source[i] * factor) for every move, as scale_convert of
  // device/cpu/kernels.h has it; several launches where the moves do not fit into one table. The
  // types may differ between floating types only. Of types that have no NaN nothing is searched.
  // Allocates nothing. `moves` is not needed any more when it returns.
  Status launch(std::span<const Move> moves, DataType from, DataType to, double factor,
                const NonFiniteSearch& search, CuStream stream) const;

 private:
  explicit MoveKernels(const CudaDriver& driver) : driver_(driver) {}
  Status find_all(CuModule module);

  const CudaDriver& driver_;
  CuFunction copy_ = nullptr;
  CuFunction moves_[kDataTypeCount][kDataTypeCount] = {};  // from, to; null where there is none
};

}  // namespace perseus
