#include "elements.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/nccl.h"
#include "failure.h"

namespace perseus::standin {
namespace {

struct Bfloat16 {
  uint16_t bits;

  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static Bfloat16 from(float value) {
    const auto all = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(all >> 16 | 0x40)};
    return {static_cast<uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
  }
};

struct Float16 {
  uint16_t bits;

  operator float() const {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    float value = 0;
    if (exponent == 31) {
      value = fraction == 0 ? HUGE_VALF : NAN;
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(fraction), -24);
    } else {
      value = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }
  static Float16 from(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (size >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
    // The step between neighbours is 2^-24 below 2^-14, and 2^(exponent - 10) above. Rounding up to
    // the next power of two carries into the exponent, as it should.
    int exponent = -14;
    if (size >= std::ldexp(1.0f, -14)) exponent = std::ilogb(size);
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return {static_cast<uint16_t>(sign | (((exponent + 14) << 10) + steps))};
  }
};

// The type in which sums are accumulated. For integers it is unsigned, which wraps around.
template <typename Element>
struct SumOf {
  using Type = std::conditional_t<std::is_floating_point_v<Element>, Element, uint64_t>;
};
template <>
struct SumOf<Bfloat16> {
  using Type = float;
};
template <>
struct SumOf<Float16> {
  using Type = float;
};

template <typename Element, typename Value>
Element rounded(Value value) {
  if constexpr (std::is_class_v<Element>) {
    return Element::from(value);
  } else {
    return static_cast<Element>(value);
  }
}

template <typename Element>
void reduce_as(int op, double factor, void* target, const std::vector<const void*>& sources,
               size_t count) {
  using Sum = typename SumOf<Element>::Type;
  const auto source = [&](size_t rank, size_t i) {
    const Element value = static_cast<const Element*>(sources[rank])[i];
    if (factor == 1.0) return value;
    return rounded<Element>(static_cast<Sum>(value) * static_cast<Sum>(factor));
  };
  for (size_t i = 0; i < count; ++i) {
    if (op == kNcclSum || op == kNcclProduct) {
      auto result = static_cast<Sum>(source(0, i));
      for (size_t rank = 1; rank < sources.size(); ++rank) {
        const auto value = static_cast<Sum>(source(rank, i));
        result = op == kNcclSum ? result + value : result * value;
      }
      static_cast<Element*>(target)[i] = rounded<Element>(result);
      continue;
    }
    Element result = source(0, i);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      const Element value = source(rank, i);
      if (op == kNcclMax ? value > result : value < result) result = value;
    }
    static_cast<Element*>(target)[i] = result;
  }
}

}  // namespace

size_t size_of_nccl_type(int type) {
  switch (type) {
    case kNcclInt8:
    case kNcclUint8: return 1;
    case kNcclFloat16:
    case kNcclBfloat16: return 2;
    case kNcclInt32:
    case kNcclFloat32: return 4;
    case kNcclInt64:
    case kNcclFloat64: return 8;
    default: return 0;
  }
}

std::string name_of_nccl_type(int type) {
  switch (type) {
    case kNcclInt8: return "int8";
    case kNcclUint8: return "uint8";
    case kNcclInt32: return "int32";
    case kNcclInt64: return "int64";
    case kNcclFloat16: return "float16";
    case kNcclFloat32: return "float32";
    case kNcclFloat64: return "float64";
    case kNcclBfloat16: return "bfloat16";
    default: return "type " + std::to_string(type);
  }
}

const char* name_of_nccl_op(int op) {
  switch (op) {
    case kNcclSum: return "sum";
    case kNcclProduct: return "product";
    case kNcclMax: return "max";
    case kNcclMin: return "min";
    default: return nullptr;
  }
}

double nccl_scalar(int type, const void* scalar) {
  switch (type) {
    case kNcclFloat16: return *static_cast<const Float16*>(scalar);
    case kNcclFloat32: return *static_cast<const float*>(scalar);
    case kNcclFloat64: return *static_cast<const double*>(scalar);
    case kNcclBfloat16: return *static_cast<const Bfloat16*>(scalar);
    default: fail("a scaled sum of " + name_of_nccl_type(type));
  }
}

void reduce(int type, int op, double factor, void* target, const std::vector<const void*>& sources,
            size_t count) {
  switch (type) {
    case kNcclInt8: return reduce_as<int8_t>(op, factor, target, sources, count);
    case kNcclUint8: return reduce_as<uint8_t>(op, factor, target, sources, count);
    case kNcclInt32: return reduce_as<int32_t>(op, factor, target, sources, count);
    case kNcclInt64: return reduce_as<int64_t>(op, factor, target, sources, count);
    case kNcclFloat16: return reduce_as<Float16>(op, factor, target, sources, count);
    case kNcclFloat32: return reduce_as<float>(op, factor, target, sources, count);
    case kNcclFloat64: return reduce_as<double>(op, factor, target, sources, count);
    case kNcclBfloat16: return reduce_as<Bfloat16>(op, factor, target, sources, count);
    default: return;  // the calls refuse such types
  }
}

}  // namespace perseus::standin
