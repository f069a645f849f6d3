// Launches the kernels of moves_kernels.inc, which move elements on a GPU.
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
  void* target;  // may equal the source if the types are equal; must not overlap it otherwise
  size_t elements;
  uint32_t index;  // of its word in NonFiniteSearch::words
};

// A search for NaN and infinity in the sources.
struct NonFiniteSearch {
  // A word for each index of the moves, in memory that the GPU can access. Each is kNothingFound or
  // what earlier launches have found: see found_word. Null: no search.
  unsigned long long* words = nullptr;
  bool puts_zeros = false;  // writes zeros to the targets in place of what is found
};

// The kernels, loaded into one context. Immutable; any thread on which that context is current.
class MoveKernels {
 public:
  // Loads `image`, which is kernels_image(), into the calling thread's current context, which keeps
  // it. kUnsupported if the image is empty.
  static Result<std::unique_ptr<MoveKernels>> load(const CudaDriver& driver,
                                                   std::span<const std::byte> image);

  // Queues on the stream, for every move: target[i] = to(source[i] * factor), as scale_convert in
  // device/cpu/kernels.h does. Launches several kernels if the moves do not fit into one table. The
  // types may differ only if both are floating types. Types without NaN are not searched. Allocates
  // nothing, and does not use `moves` after it returns.
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
