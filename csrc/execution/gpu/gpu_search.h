// What kernels find when they look for NaN and infinity in the values of one shard on a GPU, which
// is told to its FiniteCheck afterwards. The words are in pinned memory of the host, which a kernel
// touches only when there is something to tell.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "device/cuda/gpu.h"
#include "device/cuda/move_launch.h"
#include "execution/finite_check.h"

namespace perseus {

class GpuSearch {
 public:
  // For so many moves of each side, numbered from 0 on. Of types that have no NaN nothing is
  // searched.
  GpuSearch(const FiniteCheck& check, DataType dtype, size_t inputs, size_t results)
      : is_on_(check.is_on() && is_floating(dtype)),
        puts_zeros_(check.puts_zeros()),
        inputs_(inputs),
        results_(results) {}

  bool is_on() const { return is_on_; }

  // GPU's thread, before anything is launched.
  Status prepare(Gpu& gpu);
  // For MoveKernels::launch.
  NonFiniteSearch of(FiniteCheck::Side side) const;

  // The kernels may be at it until then.
  void note_use(GpuEvent until) { words_.note_use(std::move(until)); }
  // Once they are done: what was found first by move `index` of that side.
  struct Finding {
    uint64_t element;
    bool is_infinity;
  };
  std::optional<Finding> found(FiniteCheck::Side side, size_t index) const;

 private:
  unsigned long long* words(FiniteCheck::Side side) const;

  const bool is_on_, puts_zeros_;
  const size_t inputs_, results_;
  GpuBuffer words_;
};

}  // namespace perseus
