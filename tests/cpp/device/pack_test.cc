#include "device/cpu/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/elements.h"

namespace perseus {
namespace {

constexpr size_t kPackedSizes[] = {5, 0, 5000, 1, 2048};
constexpr size_t kTotal = 5 + 5000 + 1 + 2048;

struct Tensors {
  explicit Tensors(DataType type, uint64_t seed = 1) {
    for (size_t size : kPackedSizes) elements.emplace_back(type, size, seed++, 1);
    for (Elements& tensor : elements) {
      segments.push_back({tensor.data(), tensor.data(), tensor.size()});
    }
  }
  std::vector<Elements> elements;
  std::vector<Segment> segments;
};

TEST(Pack, LaysTensorsSideBySideScaledAndConverted) {
  const Tensors tensors(DataType::kFloat32);
  Elements buffer(DataType::kFloat16, kTotal, 9);
  const PackResult result = pack_segments(tensors.segments, DataType::kFloat32, DataType::kFloat16,
                                          0.5, buffer.data(), true);
  EXPECT_TRUE(result.is_finite);
  size_t at = 0;
  for (const Elements& tensor : tensors.elements) {
    for (size_t i = 0; i < tensor.size(); ++i, ++at) {
      ASSERT_EQ(buffer[at], round_to(DataType::kFloat16, tensor[i] * 0.5));
    }
  }
  EXPECT_TRUE(buffer.guards_intact());
}

TEST(Pack, AndUnpackGiveBackEveryType) {
  for (DataType type : kAllTypes) {
    const Tensors from(type);
    Tensors to(type, 100);
    Elements buffer(type, kTotal, 9);
    EXPECT_TRUE(pack_segments(from.segments, type, type, 1.0, buffer.data(), true).is_finite);
    EXPECT_TRUE(unpack_segments(buffer.data(), type, to.segments, type, 1.0, true).is_finite);
    for (size_t s = 0; s < to.elements.size(); ++s) {
      ASSERT_EQ(to.elements[s].bytes(), from.elements[s].bytes()) << to_string(type);
      ASSERT_TRUE(to.elements[s].guards_intact());
    }
  }
}

TEST(Pack, NamesTheFirstNanAndPacksAllTheSame) {
  for (DataType type : kFloatingTypes) {
    Tensors tensors(type);
    tensors.elements[2].set(4321, NAN);
    tensors.elements[4].set(0, INFINITY);
    Elements buffer(type, kTotal, 9);
    const PackResult result = pack_segments(tensors.segments, type, type, 1.0, buffer.data(), true);
    EXPECT_FALSE(result.is_finite);
    EXPECT_EQ(result.segment, 2u);
    EXPECT_EQ(result.element, 4321u);
    EXPECT_TRUE(std::isnan(buffer[5 + 4321]));
    EXPECT_EQ(buffer[5 + 5000], tensors.elements[3][0]);
    EXPECT_TRUE(pack_segments(tensors.segments, type, type, 1.0, buffer.data(), false).is_finite);
  }
}

TEST(Unpack, SearchesTheBuffer) {
  Tensors tensors(DataType::kFloat32);
  Elements buffer(DataType::kBfloat16, kTotal, 9);
  buffer.set(5 + 5000, -INFINITY);
  const PackResult result = unpack_segments(buffer.data(), DataType::kBfloat16, tensors.segments,
                                            DataType::kFloat32, 2.0, true);
  EXPECT_FALSE(result.is_finite);
  EXPECT_EQ(result.segment, 3u);
  EXPECT_EQ(result.element, 0u);
  EXPECT_EQ(tensors.elements[4][7], buffer[5 + 5000 + 1 + 7] * 2);
}

}  // namespace
}  // namespace perseus
