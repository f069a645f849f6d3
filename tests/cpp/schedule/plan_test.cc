#include "schedule/plan.h"

#include <gtest/gtest.h>

#include <map>

namespace perseus {
namespace {

Agreement::Ready ready(uint32_t id, Description description) {
  const std::string key = operation_key(description.kind, "t" + std::to_string(id));
  const int32_t priority = description.priority;
  return {id, priority,
          std::make_shared<const KnownOperation>(KnownOperation{key, std::move(description)})};
}

Description floats(const std::vector<int64_t>& extents) {
  Description description;
  for (int64_t extent : extents) description.tensors.push_back({DataType::kFloat32, {extent}});
  return description;
}

Agreement::Ready allreduce_of(uint32_t id, const std::vector<int64_t>& extents,
                              int32_t priority = 0) {
  Description description = floats(extents);
  description.priority = priority;
  return ready(id, std::move(description));
}

Agreement::Ready operation_of(uint32_t id, OperationKind kind,
                              const std::vector<int64_t>& extents) {
  Description description = floats(extents);
  description.kind = kind;
  return ready(id, std::move(description));
}

Plan plan(const std::vector<Agreement::Ready>& agreed, const Granularity& granularity) {
  Plan made;
  Planner().make(agreed, granularity, made);
  return made;
}

// Every element of every tensor is in exactly one shard, in order.
void expect_complete(const std::vector<Agreement::Ready>& agreed, const Plan& plan) {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> covered;
  for (const Shard& shard : plan.shards) {
    uint64_t elements = 0;
    for (const Piece& piece : shard.pieces) {
      uint64_t& next = covered[{piece.operation, piece.tensor}];
      EXPECT_EQ(piece.offset, next);
      next += piece.elements;
      elements += piece.elements;
    }
    EXPECT_EQ(shard.bytes, elements * size_of(shard.dtype));
  }
  for (uint32_t i = 0; i < agreed.size(); ++i) {
    for (uint32_t t = 0; t < agreed[i].description().tensors.size(); ++t) {
      const uint64_t elements =
          static_cast<uint64_t>(agreed[i].description().tensors[t].elements());
      EXPECT_EQ((covered[{i, t}]), elements) << "operation " << i << " tensor " << t;
    }
  }
}

TEST(Plan, SmallTensorsOfOneKindAreMerged) {
  std::vector<Agreement::Ready> agreed;
  for (uint32_t i = 0; i < 10; ++i) agreed.push_back(allreduce_of(i, {100}));
  const Plan made = plan(agreed, {.merge_bytes = 1 << 20, .shard_bytes = 1 << 20});
  ASSERT_EQ(made.shards.size(), 1u);
  EXPECT_EQ(made.shards[0].pieces.size(), 10u);
  expect_complete(agreed, made);
}

TEST(Plan, MergeBytesOfZeroMergesNothing) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {100}), allreduce_of(1, {100})};
  EXPECT_EQ(plan(agreed, {.merge_bytes = 0, .shard_bytes = 1 << 20}).shards.size(), 2u);
}

TEST(Plan, DifferentTypesAndOperationsAreNotMerged) {
  Description halves = floats({100}), maximum = floats({100});
  halves.tensors.front().dtype = DataType::kFloat16;
  maximum.reduce_op = ReduceOp::kMax;
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {100}), ready(1, halves),
                                                allreduce_of(2, {100}), ready(3, maximum)};
  const Plan made = plan(agreed, {.merge_bytes = 1 << 20, .shard_bytes = 1 << 20});
  EXPECT_EQ(made.shards.size(), 3u);
  expect_complete(agreed, made);
}

TEST(Plan, LargeTensorsAreCutIntoShards) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {1'000'003})};
  const Plan made = plan(agreed, {.merge_bytes = 1 << 16, .shard_bytes = 1 << 18});
  EXPECT_EQ(made.shards.size(), 16u);
  for (const Shard& shard : made.shards) EXPECT_LE(shard.bytes, (1u << 18) + 64 * 4);
  expect_complete(agreed, made);
}

TEST(Plan, TensorsOfAdasumStayWhole) {
  Description large = floats({1'000'003}), small = floats({3000, 5000, 1, 0, 7000});
  large.reduce_op = small.reduce_op = ReduceOp::kAdasum;
  const std::vector<Agreement::Ready> agreed = {ready(0, large), ready(1, small)};
  const Plan made = plan(agreed, {.merge_bytes = 1 << 16, .shard_bytes = 1 << 15});
  EXPECT_EQ(made.shards.size(), 3u);
  for (const Shard& shard : made.shards) {
    for (const Piece& piece : shard.pieces) {
      const TensorDescription& tensor = agreed[piece.operation].description().tensors[piece.tensor];
      EXPECT_EQ(piece.elements, static_cast<uint64_t>(tensor.elements()));
    }
  }
  expect_complete(agreed, made);
}

TEST(Plan, HigherPriorityShardsComeFirst) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {1 << 20}, 1),
                                                allreduce_of(1, {10}, 5)};
  const Plan made = plan(agreed, {.merge_bytes = 1 << 10, .shard_bytes = 1 << 20});
  ASSERT_EQ(made.shards.size(), 5u);
  EXPECT_EQ(made.shards[0].operation, 1u);
}

TEST(Plan, EmptyTensorsAndBarriersNeedNoShards) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {0}),
                                                operation_of(1, OperationKind::kBarrier, {})};
  EXPECT_TRUE(plan(agreed, {}).shards.empty());
}

TEST(Plan, WhatIsDoneWholeHasAShardOfNoPieces) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {1 << 18}),
                                                operation_of(1, OperationKind::kAllgather, {7}),
                                                allreduce_of(2, {9})};
  const Plan made = plan(agreed, {.merge_bytes = 1 << 20, .shard_bytes = 1 << 19});
  ASSERT_EQ(made.shards.size(), 4u);
  EXPECT_EQ(made.shards[2].operation, 1u);
  EXPECT_EQ(made.shards[2].bytes, 28u);
  EXPECT_TRUE(made.shards[2].pieces.empty());
  EXPECT_EQ(made.shards[0].pieces.size(), 1u);
  EXPECT_EQ(made.shards[1].pieces.size(), 1u);
  EXPECT_EQ(made.shards[3].pieces[0].operation, 2u);
}

TEST(Plan, APlannerUsedAgainPlansAsANewOneDoes) {
  const Granularity granularity = {.merge_bytes = 1 << 12, .shard_bytes = 1 << 11};
  std::vector<Agreement::Ready> many, few = {allreduce_of(0, {3000}), allreduce_of(1, {5, 6})};
  for (uint32_t i = 0; i < 50; ++i) many.push_back(allreduce_of(i, {100 + i}));
  Planner planner;
  Plan used;
  planner.make(many, granularity, used);
  expect_complete(many, used);
  planner.make(few, granularity, used);
  expect_complete(few, used);
  const Plan made = plan(few, granularity);
  ASSERT_EQ(used.shards.size(), made.shards.size());
  for (size_t i = 0; i < made.shards.size(); ++i) {
    EXPECT_EQ(used.shards[i].operation, made.shards[i].operation);
    EXPECT_EQ(used.shards[i].bytes, made.shards[i].bytes);
    EXPECT_EQ(used.shards[i].pieces.size(), made.shards[i].pieces.size());
  }
}

TEST(Plan, GroupsCanBeKeptApart) {
  const std::vector<Agreement::Ready> agreed = {allreduce_of(0, {5, 6}), allreduce_of(1, {7}),
                                                allreduce_of(2, {8})};
  Granularity granularity = {.merge_bytes = 1 << 20, .shard_bytes = 1 << 20};
  granularity.groups_apart = true;
  EXPECT_EQ(plan(agreed, granularity).shards.size(), 2u);
  granularity.groups_apart = false;
  EXPECT_EQ(plan(agreed, granularity).shards.size(), 1u);
}

}  // namespace
}  // namespace perseus
