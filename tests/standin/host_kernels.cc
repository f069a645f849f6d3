#include "standin/host_kernels.h"

#include <algorithm>
#include <cstring>

#define PERSEUS_DEVICE inline
#define PERSEUS_UNROLL
#define PERSEUS_FOUND_MIN(at, value) (*(at) = std::min(*(at), (value)))

namespace perseus {
namespace {

template <typename To, typename From>
To same_bits(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from));
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float float_of_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return same_bits<float>(sign | 0x7f800000 | magnitude << 13);
  // Read as a float32, the shifted bits are 2^-112 times the value, denormals included.
  const float value = same_bits<float>(magnitude << 13) * 0x1p112f;
  return same_bits<float>(sign | same_bits<uint32_t>(value));
}

inline uint16_t float16_of_float(float value) {
  const auto bits = same_bits<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // The spacing of floats at 0.5f is that of float16's denormals, so the addition rounds to
    // these.
    return sign | (same_bits<uint32_t>(same_bits<float>(magnitude) + 0.5f) - 0x3f000000);
  }
  return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13);
}

inline uint16_t bfloat16_of_float(float value) {
  const auto bits = same_bits<uint32_t>(value);
  if (value != value) return (bits | 0x400000) >> 16;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// A GPU faults where an access is not aligned to its size.
template <size_t kCount>
void check_alignment(uint64_t address) {
  if (address % (4 * kCount) != 0) __builtin_trap();
}

template <size_t kCount>
void load_words(uint32_t (&words)[kCount], uint64_t address) {
  check_alignment<kCount>(address);
  std::memcpy(words, reinterpret_cast<const void*>(address), sizeof(words));
}

template <size_t kCount>
void store_words(uint64_t address, const uint32_t (&words)[kCount]) {
  check_alignment<kCount>(address);
  std::memcpy(reinterpret_cast<void*>(address), words, sizeof(words));
}

}  // namespace
}  // namespace perseus

#include "device/cuda/moves_kernels.inc"

namespace perseus::standin {
namespace {

using Block = void (*)(const MoveTable&, uint32_t block, uint32_t thread);

struct Kernel {
  std::string_view name;
  Block block;
};

#define PERSEUS_KERNEL(name, From, To) {#name, move_block<From, To>},
constexpr Kernel kKernels[] = {{"perseus_copy", copy_block}, PERSEUS_MOVE_KERNELS(PERSEUS_KERNEL)};
#undef PERSEUS_KERNEL

const Kernel* find(std::string_view name) {
  const auto* end = std::end(kKernels);
  const auto* found =
      std::find_if(kKernels, end, [&](const Kernel& kernel) { return kernel.name == name; });
  return found == end ? nullptr : found;
}

}  // namespace

bool has_kernel(std::string_view name) { return find(name) != nullptr; }

bool run_kernel(std::string_view name, const MoveTable& table) {
  const Kernel* kernel = find(name);
  if (kernel == nullptr) return false;
  for (uint32_t block = 0; block < table.blocks; ++block) {
    for (uint32_t thread = 0; thread < kMoveThreads; ++thread) {
      kernel->block(table, block, thread);
    }
  }
  return true;
}

}  // namespace perseus::standin
