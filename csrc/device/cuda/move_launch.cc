#include "device/cuda/move_launch.h"

#include <algorithm>
#include <string>

#include "device/cuda/cuda_error.h"
#include "device/cuda/moves.h"

namespace perseus {
namespace {

bool can_move(DataType from, DataType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

std::string kernel_name(DataType from, DataType to) {
  std::string name = "perseus_move_" + std::string(to_string(from));
  if (is_floating(from)) name += "_" + std::string(to_string(to));
  return name;
}

// Fills one table after another, and launches each that is full.
class Launcher {
 public:
  Launcher(const CudaDriver& driver, CuFunction kernel, uint32_t from_size, uint32_t to_size,
           double factor, const NonFiniteSearch& search, CuStream stream)
      : driver_(driver),
        kernel_(kernel),
        from_size_(from_size),
        to_size_(to_size),
        tile_(tile_elements(from_size, to_size)),
        stream_(stream) {
    table_.factor = factor;
    table_.found = search.words;
    table_.puts_zeros = search.puts_zeros;
    clear();
  }

  Status add(const void* source, void* target, uint64_t elements, uint32_t index) {
    const auto* from = static_cast<const std::byte*>(source);
    auto* to = static_cast<std::byte*>(target);
    for (uint64_t done = 0; done < elements;) {
      if (table_.count == MoveTable::kCapacity || table_.blocks == kMostBlocks) {
        PERSEUS_RETURN_IF_ERROR(flush());
      }
      // The rest of a run that was too long is the first of the next table.
      if (table_.count == 0) table_.first_element = done;
      const uint64_t first = done;
      done +=
          add_what_fits(from + first * from_size_, to + first * to_size_, elements - first, index);
    }
    return {};
  }

  Status flush() {
    if (table_.count == 0) return {};
    void* parameters[] = {&table_};
    const CuResult result = driver_.launch(kernel_, table_.blocks, 1, 1, kMoveThreads, 1, 1, 0,
                                           stream_, parameters, nullptr);
    clear();
    return cuda_status(driver_, result, "launching a kernel that moves tensors");
  }

 private:
  void clear() {
    table_.count = 0;
    table_.blocks = 0;
    table_.first_element = 0;
  }

  uint64_t add_what_fits(const void* source, void* target, uint64_t elements, uint32_t index) {
    const uint64_t before =
        elements_before(reinterpret_cast<uintptr_t>(target), from_size_, to_size_);
    const uint64_t room = (kMostBlocks - table_.blocks) * tile_ - before;
    const uint64_t fits = std::min(elements, room);
    table_.runs[table_.count++] = {source, target, fits, table_.blocks, index};
    table_.blocks += static_cast<uint32_t>((before + fits + tile_ - 1) / tile_);
    return fits;
  }

  const CudaDriver& driver_;
  CuFunction kernel_;
  uint32_t from_size_, to_size_;
  uint64_t tile_;
  CuStream stream_;
  MoveTable table_;
};

}  // namespace

Result<std::unique_ptr<MoveKernels>> MoveKernels::load(const CudaDriver& driver,
                                                       std::span<const std::byte> image) {
  if (image.empty()) {
    return Status::unsupported(
        "this build of Perseus has no CUDA kernels, since there was no nvcc; build it where nvcc "
        "is on PATH, or after `make env-nvcc`");
  }
  CuModule module = nullptr;
  PERSEUS_RETURN_IF_ERROR(
      cuda_status(driver, driver.load_module(&module, image.data()), "loading Perseus's kernels"));
  std::unique_ptr<MoveKernels> kernels(new MoveKernels(driver));
  PERSEUS_RETURN_IF_ERROR(kernels->find_all(module));
  return kernels;
}

Status MoveKernels::find_all(CuModule module) {
  const auto find = [&](CuFunction& function, const std::string& name) {
    return cuda_status(driver_, driver_.find_function(&function, module, name.c_str()),
                       "looking for the kernel " + name);
  };
  PERSEUS_RETURN_IF_ERROR(find(copy_, "perseus_copy"));
  for (int i = 0; i < kDataTypeCount; ++i) {
    for (int k = 0; k < kDataTypeCount; ++k) {
      const auto from = static_cast<DataType>(i), to = static_cast<DataType>(k);
      if (!can_move(from, to)) continue;
      PERSEUS_RETURN_IF_ERROR(find(moves_[i][k], kernel_name(from, to)));
    }
  }
  return {};
}

Status MoveKernels::launch(std::span<const Move> moves, DataType from, DataType to, double factor,
                           const NonFiniteSearch& search, CuStream stream) const {
  if (!can_move(from, to)) {
    return Status::invalid_argument("cannot convert " + std::string(to_string(from)) + " to " +
                                    std::string(to_string(to)) + " on the GPU");
  }
  const bool is_searched = search.words != nullptr && is_floating(from);
  const bool is_copy = from == to && factor == 1 && !is_searched;
  const CuFunction kernel = is_copy ? copy_ : moves_[static_cast<int>(from)][static_cast<int>(to)];
  const auto from_size = static_cast<uint32_t>(size_of(from));
  const auto to_size = static_cast<uint32_t>(size_of(to));
  const uint32_t bytes_of_copied = is_copy ? from_size : 1;
  Launcher launcher(driver_, kernel, is_copy ? 1 : from_size, is_copy ? 1 : to_size, factor,
                    is_searched ? search : NonFiniteSearch{}, stream);
  for (const Move& move : moves) {
    if (is_copy && move.source == move.target) continue;
    PERSEUS_RETURN_IF_ERROR(launcher.add(move.source, move.target,
                                         uint64_t{move.elements} * bytes_of_copied, move.index));
  }
  return launcher.flush();
}

}  // namespace perseus
