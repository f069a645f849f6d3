#include "base/name_map.h"

#include <gtest/gtest.h>

#include <memory>

namespace perseus {
namespace {

using Map = NameMap<std::shared_ptr<int>>;

TEST(NameMap, GivesOutWhatWasPutInOnce) {
  Map map;
  map.insert("a", std::make_shared<int>(1));
  map.insert("b", std::make_shared<int>(2));
  EXPECT_EQ(map.size(), 2u);
  EXPECT_EQ(*map.extract("a"), 1);
  EXPECT_FALSE(map.contains("a"));
  EXPECT_EQ(map.extract("a"), nullptr);
  EXPECT_EQ(*map.find("b")->second, 2);
}

TEST(NameMap, NamesThatComeAndGoFindTheirValues) {
  Map map;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 100; ++i) {
      map.insert(std::to_string(i * (round + 1)), std::make_shared<int>(i));
    }
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(*map.extract(std::to_string(i * (round + 1))), i) << "round " << round;
    }
    EXPECT_TRUE(map.empty());
  }
}

TEST(NameMap, KeepsNoValueThatIsGone) {
  Map map;
  const auto value = std::make_shared<int>(1);
  map.insert("a", value);
  map.extract("a");
  map.insert("b", value);
  map.clear();
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(value.use_count(), 1);
}

TEST(NameMap, TheMemoryOfANameServesTheNext) {
  Map map;
  const std::string first(100, 'a'), second(100, 'b');
  map.insert(first, nullptr);
  const char* const memory = map.begin()->first.data();
  map.extract(first);
  map.insert(second, nullptr);
  EXPECT_EQ(map.begin()->first, second);
  EXPECT_EQ(map.begin()->first.data(), memory);
}

}  // namespace
}  // namespace perseus
