// Holds what kernels find when they look for NaN and infinity in the values of one shard on a GPU.
// Its FiniteCheck is told afterwards. The words are in pinned memory of the host, which a kernel
// writes only when it finds something.
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
  // `inputs` and `results`: the number of moves of each side, which are numbered from 0. Types that
  // have no NaN are not searched.
  GpuSearch(const FiniteCheck& check, DataType dtype, size_t inputs, size_t results)
      : is_on_(check.is_on() && is_floating(dtype)),
        puts_zeros_(check.puts_zeros()),
        inputs_(inputs),
        results_(results) {}

  bool is_on() const { return is_on_; }

  // GPU's thread. Call before anything is launched.
  Status prepare(Gpu& gpu);
  // For MoveKernels::launch.
  NonFiniteSearch of(FiniteCheck::Side side) const;

  // Kernels may use the memory until then.
  void note_use(GpuEvent until) { words_.note_use(std::move(until)); }
  // Once the kernels are done: what move `index` of that side found first.
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
