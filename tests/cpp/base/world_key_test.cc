#include "base/world_key.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace perseus {
namespace {

using Introductions = std::vector<std::string>;

const Introductions kRanks = {"of rank 0", "of rank 1"};

TEST(WorldKeyTest, RanksOfAWorldHaveTheSameKey) {
  const WorldKey one("secret", kRanks);
  const WorldKey other("secret", kRanks);
  EXPECT_EQ(one.tag("use", {"bytes"}), other.tag("use", {"bytes"}));
}

TEST(WorldKeyTest, OtherSecretsAndOtherWorldsHaveOtherKeys) {
  std::set<MessageTag> tags;
  for (const char* secret : {"secret", "another", ""}) {
    for (const Introductions& world :
         {kRanks, Introductions{"of rank 1", "of rank 0"}, Introductions{"of rank 0of rank 1"},
          Introductions{"of rank 0o", "f rank 1"}, Introductions{"of rank 0"}, Introductions{}}) {
      tags.insert(WorldKey(secret, world).tag("use", {"bytes"}));
    }
  }
  EXPECT_EQ(tags.size(), 18U);
}

TEST(WorldKeyTest, EachWorldHasANameOfItsOwn) {
  const std::string name = WorldKey("secret", kRanks).name();
  EXPECT_EQ(name.size(), 32U);
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(WorldKey("secret", kRanks).name(), name);
  EXPECT_NE(WorldKey("another", kRanks).name(), name);
  EXPECT_NE(WorldKey("secret", Introductions{"of rank 0"}).name(), name);
}

TEST(WorldKeyTest, TagsForDifferentUsesDiffer) {
  const WorldKey key("secret", kRanks);
  EXPECT_NE(key.tag("use", {"bytes"}), key.tag("another", {"bytes"}));
  EXPECT_NE(key.tag("use", {"bytes"}), key.tag("us", {"e", "bytes"}));
}

TEST(WorldKeyTest, AFieldEndsWhereItEnds) {
  const WorldKey key("secret", kRanks);
  std::set<MessageTag> tags;
  tags.insert(key.tag("use", {"ab", "c"}));
  tags.insert(key.tag("use", {"a", "bc"}));
  tags.insert(key.tag("use", {"abc"}));
  tags.insert(key.tag("use", {"abc", ""}));
  tags.insert(key.tag("use", {"", "abc"}));
  EXPECT_EQ(tags.size(), 5U);
}

TEST(WorldKeyTest, EveryBitCounts) {
  const WorldKey key("secret", kRanks);
  const std::string bytes(200, 'x');
  std::set<MessageTag> tags = {key.tag("use", {bytes})};
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string altered = bytes;
    altered[i] ^= 1;
    tags.insert(key.tag("use", {altered}));
  }
  EXPECT_EQ(tags.size(), bytes.size() + 1);
}

TEST(WorldKeyTest, ItIsNotTheKeyOfAConnection) {
  // Someone who has seen the tags of a connection has none of a world.
  Session session("secret", "of rank 0", Role::kInitiator);
  EXPECT_NE(session.outgoing.next({"bytes"}),
            WorldKey("secret", Introductions{"of rank 0"}).tag("use", {"bytes"}));
}

}  // namespace
}  // namespace perseus
