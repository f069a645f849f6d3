#include "negotiation/records.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

Record said_by(int32_t rank, Shape shape, double prescale = 1.0) {
  Statement statement;
  statement.rank = rank;
  statement.ordinal = static_cast<uint32_t>(10 * rank);
  statement.description.prescale = prescale;
  statement.description.tensors.push_back({DataType::kFloat32, std::move(shape)});
  Record record;
  record.statements.push_back(std::move(statement));
  return record;
}

std::optional<Record> nothing(std::string_view) { return std::nullopt; }

Records merged(Records into, const Records& other) {
  into.merge(other, nothing, nothing);
  return into;
}

std::vector<std::byte> bytes_of(const Records& records) {
  ByteWriter writer;
  records.write(writer);
  return {writer.bytes().begin(), writer.bytes().end()};
}

bool can_read(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  return Records().read(reader);
}

TEST(Records, AreReadAsTheyWereWritten) {
  Records records;
  records.append("a", said_by(3, {4, 5}));
  Record refused = said_by(1, {});
  refused.statements[0].refusal = Refusal{"its root is wrong", 2, "other"};
  refused.waiting = {1, 7};
  records.append("b", refused);

  Records copy;
  const auto bytes = bytes_of(records);
  ByteReader reader(bytes);
  ASSERT_TRUE(copy.read(reader));
  EXPECT_EQ(bytes_of(copy), bytes);
  const auto unpacked = copy.unpack();
  ASSERT_EQ(unpacked.size(), 2u);
  EXPECT_EQ(unpacked[0].second.statements[0].description.tensors[0].shape, (Shape{4, 5}));
  EXPECT_EQ(unpacked[1].first, "b");
  EXPECT_EQ(unpacked[1].second.waiting, (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(unpacked[1].second.statements[0].refusal->instead_key, "other");
}

TEST(Records, BytesThatAreNoneAreRefused) {
  Records records;
  records.append("a", said_by(0, {4}));
  records.append("b", said_by(0, {4}));
  auto bytes = bytes_of(records);
  ASSERT_TRUE(can_read(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(can_read(std::span(bytes).first(size))) << size;
  }
  Records unordered;
  unordered.append("b", said_by(0, {4}));
  unordered.append("a", said_by(0, {4}));
  EXPECT_FALSE(can_read(bytes_of(unordered)));
  Records without_statement;
  without_statement.append("a", Record());
  EXPECT_FALSE(can_read(bytes_of(without_statement)));
}

TEST(Records, WhatTwoSayAlikeIsTheLowerRanksWordEitherWay) {
  // The second differs in a bit that does not matter, so the two cannot be compared as bytes.
  for (const double zero : {0.0, -0.0}) {
    Records low, high;
    low.append("a", said_by(2, {4}, 0.0));
    high.append("a", said_by(5, {4}, zero));
    for (const Records& both : {merged(low, high), merged(high, low)}) {
      const auto unpacked = both.unpack();
      ASSERT_EQ(unpacked.size(), 1u);
      EXPECT_TRUE(unpacked[0].second.everywhere);
      ASSERT_EQ(unpacked[0].second.statements.size(), 1u);
      EXPECT_EQ(unpacked[0].second.statements[0].rank, 2);
      EXPECT_EQ(unpacked[0].second.statements[0].ordinal, 20u);
    }
  }
}

TEST(Records, OfThreeThatDifferTheTwoLowestRanksAreKept) {
  Records first, second, third;
  first.append("a", said_by(1, {1}));
  second.append("a", said_by(2, {2}));
  third.append("a", said_by(3, {3}));
  const auto expected = bytes_of(merged(first, second));
  EXPECT_EQ(bytes_of(merged(merged(third, second), first)), expected);
  EXPECT_EQ(bytes_of(merged(third, merged(second, first))), expected);
}

TEST(Records, WhatOnlyOneSideHasIsNotEverywhere) {
  Records left, right;
  left.append("a", said_by(0, {4}));
  left.append("b", said_by(0, {4}));
  right.append("b", said_by(1, {4}));
  right.append("c", said_by(1, {4}));
  const auto both = merged(left, right).unpack();
  ASSERT_EQ(both.size(), 3u);
  EXPECT_FALSE(both[0].second.everywhere);
  EXPECT_TRUE(both[1].second.everywhere);
  EXPECT_FALSE(both[2].second.everywhere);
}

TEST(Records, WhatTheOtherSideCanMakeUpIsEverywhere) {
  Records left, right;
  left.append("a", said_by(3, {4}));
  const auto make_up = [](std::string_view) -> std::optional<Record> { return said_by(1, {4}); };
  left.merge(right, nothing, make_up);
  const auto merged = left.unpack();
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_TRUE(merged[0].second.everywhere);
  EXPECT_EQ(merged[0].second.statements[0].rank, 1);
}

}  // namespace
}  // namespace perseus
