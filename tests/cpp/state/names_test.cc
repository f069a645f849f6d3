#include "state/names.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

namespace perseus {
namespace {

TEST(Names, TheSameNameHasTheSameId) {
  Names names;
  const int32_t id = names.id_of(0, OperationKind::kAllreduce, "weight");
  EXPECT_EQ(names.id_of(0, OperationKind::kAllreduce, "weight"), id);
  EXPECT_NE(names.id_of(0, OperationKind::kBroadcast, "weight"), id);
  EXPECT_NE(names.id_of(1, OperationKind::kAllreduce, "weight"), id);
  EXPECT_NE(names.id_of(0, OperationKind::kAllreduce, "bias"), id);
}

TEST(Names, AnIdLeadsBackToItsName) {
  Names names;
  const int32_t id = names.id_of(3, OperationKind::kAllgather, "tokens");
  const auto found = names.find(id);
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ(found.value()->process_set, 3);
  EXPECT_EQ(found.value()->kind, OperationKind::kAllgather);
  EXPECT_EQ(found.value()->key, operation_key(OperationKind::kAllgather, "tokens"));
  EXPECT_EQ(names.find(id + 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(names.find(-1).status().code(), StatusCode::kInvalidArgument);
}

TEST(Names, EntriesStayWhereTheyAre) {
  Names names;
  const auto* first = names.find(names.id_of(0, OperationKind::kAllreduce, "first")).value();
  for (int i = 0; i < 10000; ++i) {
    names.id_of(0, OperationKind::kAllreduce, "name" + std::to_string(i));
  }
  EXPECT_EQ(names.find(names.id_of(0, OperationKind::kAllreduce, "first")).value(), first);
  EXPECT_EQ(name_of_key(first->key), "first");
}

TEST(Names, AnIdIsFoundWhileOtherThreadsRegisterNames) {
  Names names;
  constexpr int kNames = 5000;
  std::atomic<int32_t> last{-1};
  std::jthread registering([&] {
    for (int i = 0; i < kNames; ++i) {
      last = names.id_of(0, OperationKind::kAllreduce, "name" + std::to_string(i));
    }
  });
  int32_t id = -1;
  while (id != kNames - 1) {
    id = last;
    if (id < 0) continue;
    const auto found = names.find(id);
    ASSERT_TRUE(found.is_ok());
    ASSERT_EQ(name_of_key(found.value()->key), "name" + std::to_string(id));
    ASSERT_TRUE(names.take(id));
    names.give_back(id);
  }
}

TEST(Names, ANameIsInFlightUntilItIsGivenBack) {
  Names names;
  const int32_t id = names.id_of(0, OperationKind::kAllreduce, "weight");
  EXPECT_TRUE(names.take(id));
  EXPECT_FALSE(names.take(id));
  EXPECT_TRUE(names.is_in_flight(id));
  names.give_back(id);
  EXPECT_FALSE(names.is_in_flight(id));
  EXPECT_TRUE(names.take(id));
}

}  // namespace
}  // namespace perseus
