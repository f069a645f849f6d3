#include "base/shape.h"

#include <gtest/gtest.h>

#include <numeric>

namespace perseus {
namespace {

Shape counting_to(int dimensions) {
  Shape shape;
  for (int64_t d = 0; d < dimensions; ++d) shape.push_back(d + 1);
  return shape;
}

TEST(Shape, HoldsAnyNumberOfExtents) {
  for (int dimensions : {0, 1, 5, 6, 7, 8, 64}) {
    const Shape shape = counting_to(dimensions);
    EXPECT_EQ(shape.size(), static_cast<size_t>(dimensions));
    EXPECT_EQ(shape.empty(), dimensions == 0);
    EXPECT_EQ(std::accumulate(shape.begin(), shape.end(), int64_t{0}),
              dimensions * (dimensions + 1) / 2);
    for (int d = 0; d < dimensions; ++d) EXPECT_EQ(shape[d], d + 1);
  }
}

TEST(Shape, IsAValue) {
  for (int dimensions : {1, 6, 7, 9}) {
    const Shape shape = counting_to(dimensions);
    Shape copy = shape;
    EXPECT_EQ(copy, shape);
    copy[0] = 100;
    EXPECT_NE(copy, shape);
    EXPECT_EQ(shape.front(), 1);
    copy = shape;
    EXPECT_EQ(copy, shape);
  }
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
}

TEST(Shape, CanBeUsedAgain) {
  Shape shape = counting_to(9);
  for (int dimensions : {3, 8, 0, 7, 6}) {
    shape.clear();
    for (int64_t d = 0; d < dimensions; ++d) shape.push_back(d + 1);
    EXPECT_EQ(shape, counting_to(dimensions));
  }
}

}  // namespace
}  // namespace perseus
