#include "device/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/dispatch.h"
#include "reference/elements.h"

namespace perseus {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 17, 1000, 65537};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr ReduceOp kBitwiseOps[] = {ReduceOp::kBitwiseAnd, ReduceOp::kBitwiseOr,
                                    ReduceOp::kBitwiseXor};

// Every test runs under each variant of the kernels that this machine can run.
class Kernels : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    before_ = instruction_set();
    ASSERT_TRUE(select_instruction_set(GetParam()));
    ASSERT_EQ(instruction_set(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(select_instruction_set(before_)); }

 private:
  std::string_view before_;
};

INSTANTIATE_TEST_SUITE_P(Variants, Kernels, testing::ValuesIn(available_instruction_sets()),
                         [](const auto& info) { return std::string(info.param); });

double reference(DataType type, ReduceOp op, double a, double b) {
  if (type == DataType::kBool) {
    const bool is_or = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return is_or ? (a != 0 || b != 0) : (a != 0 && b != 0);
  }
  switch (op) {
    case ReduceOp::kMin: return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case ReduceOp::kMax: return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case ReduceOp::kProduct: return a * b;
    default: return a + b;
  }
}

TEST_P(Kernels, ReductionMatchesFloat64ForEveryTypeOperationSizeAndAlignment) {
  for (DataType type : kAllTypes) {
    for (ReduceOp op : kOps) {
      for (size_t size : kSizes) {
        for (size_t offset : {0, 1, 3}) {
          Elements a(type, size, 1, offset), b(type, size, 2, offset ? offset + 2 : 0);
          const Elements original = a;
          const Reduction sum = reduction(type, op);
          ASSERT_EQ(sum.accumulator_size, size_of(type));
          ASSERT_EQ(sum.arriving_size, size_of(type));
          sum.kernel(a.data(), b.data(), size);
          for (size_t i = 0; i < size; ++i) {
            const double expected = round_to(type, reference(type, op, original[i], b[i]));
            ASSERT_EQ(a[i], expected)
                << to_string(type) << " " << to_string(op) << " " << size << " elements, offset "
                << offset << ", at " << i << ": " << original[i] << " and " << b[i];
          }
          ASSERT_TRUE(a.guards_intact());
        }
      }
    }
  }
}

uint8_t bits_reference(ReduceOp op, uint8_t a, uint8_t b) {
  switch (op) {
    case ReduceOp::kBitwiseAnd: return a & b;
    case ReduceOp::kBitwiseOr: return a | b;
    default: return a ^ b;
  }
}

TEST_P(Kernels, OperationsOnBitsTakeAllBitsOfIntegersAndTheTruthOfBools) {
  std::mt19937 random(7);
  for (DataType type : kAllTypes) {
    if (is_floating(type)) continue;
    for (ReduceOp op : kBitwiseOps) {
      for (size_t size : kSizes) {
        const int most = type == DataType::kBool ? 1 : 255;
        std::vector<uint8_t> a(size * size_of(type)), b(a.size()), neutral(a.size());
        for (size_t i = 0; i < a.size(); ++i) {
          a[i] = static_cast<uint8_t>(random() & most);
          b[i] = static_cast<uint8_t>(random() & most);
        }
        fill_identity(neutral.data(), size, type, op);
        const std::vector<uint8_t> original = a;
        const Reduction bits = reduction(type, op);
        bits.kernel(a.data(), neutral.data(), size);
        ASSERT_EQ(a, original) << to_string(type) << " " << to_string(op) << " and its identity";
        bits.kernel(a.data(), b.data(), size);
        for (size_t i = 0; i < a.size(); ++i) {
          ASSERT_EQ(a[i], bits_reference(op, original[i], b[i]))
              << to_string(type) << " " << to_string(op) << " at byte " << i;
        }
      }
    }
  }
}

TEST_P(Kernels, WideReductionKeepsSixteenBitSumsInFloat32) {
  for (DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    ASSERT_EQ(accumulator_type(type), DataType::kFloat32);
    for (ReduceOp op : kOps) {
      for (size_t size : kSizes) {
        Elements a(DataType::kFloat32, size, 3, 1), b(type, size, 4, 3);
        const Elements original = a;
        const Reduction wide = wide_reduction(type, op);
        ASSERT_EQ(wide.accumulator_size, 4u);
        ASSERT_EQ(wide.arriving_size, 2u);
        wide.kernel(a.data(), b.data(), size);
        for (size_t i = 0; i < size; ++i) {
          ASSERT_EQ(a[i], static_cast<float>(reference(type, op, original[i], b[i])));
        }
        ASSERT_TRUE(a.guards_intact());
      }
    }
  }
  EXPECT_EQ(accumulator_type(DataType::kInt8), DataType::kInt8);
  EXPECT_EQ(wide_reduction(DataType::kInt32, ReduceOp::kMax).accumulator_size, 4u);
}

TEST_P(Kernels, IntegersWrap) {
  std::vector<int8_t> small(40, 127), one(40, 1);
  reduction(DataType::kInt8, ReduceOp::kSum).kernel(small.data(), one.data(), small.size());
  EXPECT_EQ(small, std::vector<int8_t>(40, -128));
  std::vector<uint16_t> large(40, 65535), same(40, 65535);
  reduction(DataType::kUint16, ReduceOp::kProduct).kernel(large.data(), same.data(), large.size());
  EXPECT_EQ(large, std::vector<uint16_t>(40, 1));
  std::vector<int64_t> huge(9, std::numeric_limits<int64_t>::max()), two(9, 2);
  reduction(DataType::kInt64, ReduceOp::kProduct).kernel(huge.data(), two.data(), huge.size());
  EXPECT_EQ(huge, std::vector<int64_t>(9, -2));
}

TEST_P(Kernels, SixtyFourBitIntegersKeepAllTheirBits) {
  const int64_t value = (int64_t{1} << 62) + 1;
  std::vector<int64_t> a(9, value), b(9, 1);
  reduction(DataType::kInt64, ReduceOp::kSum).kernel(a.data(), b.data(), a.size());
  EXPECT_EQ(a, std::vector<int64_t>(9, value + 1));
  reduction(DataType::kInt64, ReduceOp::kMin).kernel(a.data(), b.data(), a.size());
  EXPECT_EQ(a, b);
}

TEST_P(Kernels, NanOnEitherSidePropagatesThroughEveryOperation) {
  constexpr size_t kSize = 37;
  for (DataType type : kFloatingTypes) {
    for (ReduceOp op : kOps) {
      for (size_t at : {size_t{0}, size_t{19}, kSize - 1}) {
        for (bool left : {true, false}) {
          Elements a(type, kSize, 5), b(type, kSize, 6);
          (left ? a : b).set(at, NAN);
          reduction(type, op).kernel(a.data(), b.data(), kSize);
          for (size_t i = 0; i < kSize; ++i) {
            ASSERT_EQ(std::isnan(a[i]), i == at) << to_string(type) << " " << to_string(op);
          }
        }
      }
    }
  }
}

TEST_P(Kernels, EverySixteenBitPatternSurvivesAWideningAndNarrowing) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    for (DataType wide : {DataType::kFloat32, DataType::kFloat64}) {
      std::vector<double> values(65536);
      convert(values.data(), wide, all.data(), type, all.size());
      convert(back.data(), type, values.data(), wide, all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const double expected = decode(type, all[i]);
        const double value = wide == DataType::kFloat64
                                 ? values[i]
                                 : reinterpret_cast<const float*>(values.data())[i];
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(value)) << to_string(type) << " pattern " << i;
          ASSERT_TRUE(std::isnan(decode(type, back[i])));
        } else {
          ASSERT_EQ(value, expected) << to_string(type) << " pattern " << i;
          ASSERT_EQ(back[i], all[i]);
        }
      }
    }
  }
}

TEST_P(Kernels, NarrowingRoundsToNearestEvenFromEitherWidth) {
  std::mt19937_64 random(7);
  std::vector<float> singles = {0.f,          -0.f,         65504.f,  65519.99f,       65520.f,
                                -1e30f,       0x1p-24f,     0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f,
                                0x1.ffep-15f, 0x1.fffp-15f, INFINITY};
  std::vector<double> doubles(singles.begin(), singles.end());
  // Just above and below ties of float16 and bfloat16, where rounding twice would give wrong
  // results.
  for (double tie : {1.0 + 0x1p-11, 1.0 + 0x1p-8, 1.0 + 3 * 0x1p-11, 1.0 + 3 * 0x1p-8, 0x1p-25}) {
    for (double sign : {1.0, -1.0}) {
      doubles.insert(doubles.end(), {sign * tie, sign * std::nextafter(tie, 0.0),
                                     sign * std::nextafter(tie, 2.0)});
    }
  }
  while (singles.size() < 20000) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) singles.push_back(value);
    doubles.push_back(
        std::ldexp(static_cast<double>(random()), -64 - static_cast<int>(random() % 30)));
  }
  for (DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<uint16_t> narrow(singles.size());
    convert(narrow.data(), type, singles.data(), DataType::kFloat32, singles.size());
    for (size_t i = 0; i < singles.size(); ++i) {
      ASSERT_EQ(decode(type, narrow[i]), round_to(type, singles[i])) << singles[i];
      ASSERT_EQ(narrow[i] >> 15, std::signbit(singles[i]));
    }
    narrow.resize(doubles.size());
    convert(narrow.data(), type, doubles.data(), DataType::kFloat64, doubles.size());
    for (size_t i = 0; i < doubles.size(); ++i) {
      ASSERT_EQ(decode(type, narrow[i]), round_to(type, doubles[i])) << doubles[i];
    }
  }
}

TEST_P(Kernels, ScaleConvertMultipliesAndRoundsOnceBetweenAllFloatingTypes) {
  for (DataType from : kFloatingTypes) {
    for (DataType to : kFloatingTypes) {
      for (size_t size : kSizes) {
        Elements source(from, size, 8, 1), target(to, size, 9, 3);
        scale_convert(target.data(), to, source.data(), from, size, 0.3);
        const bool in_double = from == DataType::kFloat64 || to == DataType::kFloat64;
        for (size_t i = 0; i < size; ++i) {
          const double product = in_double
                                     ? source[i] * 0.3
                                     : static_cast<float>(static_cast<float>(source[i]) * 0.3f);
          ASSERT_EQ(target[i], round_to(to, product)) << to_string(from) << " to " << to_string(to);
        }
        ASSERT_TRUE(target.guards_intact());
      }
    }
  }
}

TEST_P(Kernels, ScaleOfIntegersTruncatesAndSaturates) {
  std::vector<int32_t> values = {7, -7, 2000000000, -2000000000, 0};
  std::vector<int32_t> scaled(values.size());
  scale(scaled.data(), values.data(), values.size(), DataType::kInt32, 0.5);
  EXPECT_EQ(scaled, (std::vector<int32_t>{3, -3, 1000000000, -1000000000, 0}));
  scale(scaled.data(), values.data(), values.size(), DataType::kInt32, 2.0);
  EXPECT_EQ(scaled, (std::vector<int32_t>{14, -14, INT32_MAX, INT32_MIN, 0}));
  std::vector<uint8_t> bytes = {3, 200};
  scale(bytes.data(), bytes.data(), bytes.size(), DataType::kUint8, -1.0);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{0, 0}));
  std::vector<int64_t> wide = {INT64_MAX, INT64_MIN, 10};
  scale(wide.data(), wide.data(), wide.size(), DataType::kInt64, 1.5);
  EXPECT_EQ(wide, (std::vector<int64_t>{INT64_MAX, INT64_MIN, 15}));
}

TEST_P(Kernels, ScaleMatchesTheReferenceInPlaceForEveryType) {
  for (DataType type : kAllTypes) {
    for (size_t size : kSizes) {
      Elements values(type, size, 10, 1);
      const Elements original = values;
      scale(values.data(), values.data(), size, type, 0.25);
      for (size_t i = 0; i < size; ++i) {
        double expected = original[i] * 0.25;
        if (type == DataType::kBool) expected = original[i];
        ASSERT_EQ(values[i], is_floating(type) ? round_to(type, expected) : std::trunc(expected));
      }
      ASSERT_TRUE(values.guards_intact());
    }
  }
}

TEST_P(Kernels, BoolIsUnchangedByScalingUnlessTheFactorIsZero) {
  std::vector<uint8_t> values = {0, 1, 1};
  scale(values.data(), values.data(), 3, DataType::kBool, 0.1);
  EXPECT_EQ(values, (std::vector<uint8_t>{0, 1, 1}));
  scale(values.data(), values.data(), 3, DataType::kBool, 0.0);
  EXPECT_EQ(values, (std::vector<uint8_t>{0, 0, 0}));
}

TEST_P(Kernels, IdentityChangesNothing) {
  constexpr size_t kSize = 100;
  for (DataType type : kAllTypes) {
    for (ReduceOp op : kOps) {
      Elements identity(type, kSize, 11), values(type, kSize, 12);
      const Elements original = values;
      fill_identity(identity.data(), kSize, type, op);
      reduction(type, op).kernel(identity.data(), values.data(), kSize);
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(identity[i], original[i]) << to_string(type) << " " << to_string(op);
      }
    }
  }
}

TEST_P(Kernels, ProductsAndCombinationsMatchFloat64AtEverySizeAndAlignment) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat64}) {
    for (size_t size : {0, 1, 15, 16, 17, 33, 1000}) {
      for (size_t skip : {0, 1}) {
        Elements a(type, size + skip, 1), b(type, size + skip, 2);
        double expected[3] = {1, 2, 3};  // sums are added to these
        for (size_t i = skip; i < size + skip; ++i) {
          expected[0] += a[i] * b[i];
          expected[1] += a[i] * a[i];
          expected[2] += b[i] * b[i];
        }
        auto* at_a = static_cast<std::byte*>(a.data()) + skip * size_of(type);
        auto* at_b = static_cast<std::byte*>(b.data()) + skip * size_of(type);
        double products[3] = {1, 2, 3};
        add_products(at_a, at_b, size, type, products);
        for (int p = 0; p < 3; ++p) EXPECT_NEAR(products[p], expected[p], 1e-12 * expected[1]);
        std::vector<double> combined;
        for (size_t i = skip; i < size + skip; ++i) combined.push_back(0.75 * a[i] - 2.5 * b[i]);
        combine(at_a, at_b, size, type, 0.75, -2.5);
        const double tolerance = type == DataType::kFloat32 ? 1e-6 : 1e-15;
        for (size_t i = 0; i < size; ++i) {
          EXPECT_NEAR(a[i + skip], combined[i], tolerance * (1 + std::abs(combined[i])));
        }
      }
    }
  }
}

TEST_P(Kernels, FindNonFiniteGivesTheFirstOne) {
  for (DataType type : kAllTypes) {
    for (size_t size : kSizes) {
      Elements values(type, size, 13, 1);
      ASSERT_EQ(find_non_finite(values.data(), size, type), size);
      if (!is_floating(type) || size == 0) continue;
      for (size_t at : {size_t{0}, size / 2, size - 1}) {
        for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY),
                           -static_cast<double>(INFINITY)}) {
          Elements spoilt = values;
          spoilt.set(size - 1, bad);
          spoilt.set(at, bad);
          ASSERT_EQ(find_non_finite(spoilt.data(), size, type), at) << to_string(type);
        }
      }
    }
  }
}

TEST_P(Kernels, CopyTensorCopiesAllAndNoMore) {
  for (DataType type : kAllTypes) {
    for (size_t size : kSizes) {
      const Elements values(type, size, 14, 1);
      Elements copied(type, size, 15);
      copy_tensor(copied.data(), values.data(), size, type);
      ASSERT_EQ(copied.bytes(), values.bytes()) << to_string(type);
      ASSERT_TRUE(copied.guards_intact());
    }
  }
}

TEST_P(Kernels, CopyFiniteCopiesAllAndSeesEveryPlace) {
  for (DataType type : kAllTypes) {
    for (size_t size : kSizes) {
      const Elements values(type, size, 14, 1);
      Elements copied(type, size, 15);
      ASSERT_TRUE(copy_finite(copied.data(), values.data(), size, type)) << to_string(type);
      ASSERT_EQ(copied.bytes(), values.bytes());
      ASSERT_TRUE(copied.guards_intact());
      if (!is_floating(type) || size == 0) continue;
      for (size_t at : {size_t{0}, size / 3, size / 2, size - 1}) {
        for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
          Elements spoilt = values;
          spoilt.set(at, bad);
          ASSERT_FALSE(copy_finite(copied.data(), spoilt.data(), size, type)) << to_string(type);
          ASSERT_EQ(copied.bytes(), spoilt.bytes());
        }
      }
    }
  }
}

TEST(KernelVariants, GiveTheSameBits) {
  constexpr size_t kSize = 5000;
  const std::string before(instruction_set());
  for (DataType type : kAllTypes) {
    for (ReduceOp op : kOps) {
      std::string first;
      for (std::string_view variant : available_instruction_sets()) {
        ASSERT_TRUE(select_instruction_set(variant));
        Elements a(type, kSize, 14), b(type, kSize, 15);
        reduction(type, op).kernel(a.data(), b.data(), kSize);
        scale(a.data(), a.data(), kSize, type, 1.0 / 3);
        if (first.empty()) first = a.bytes();
        ASSERT_EQ(a.bytes(), first) << variant << " " << to_string(type) << " " << to_string(op);
      }
    }
  }
  ASSERT_TRUE(select_instruction_set(before));
}

TEST(KernelVariants, UnknownOnesAreRefused) { EXPECT_FALSE(select_instruction_set("mmx")); }

}  // namespace
}  // namespace perseus
