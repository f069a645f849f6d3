#include "state/handles.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace perseus {
namespace {

TEST(Handles, FindWhatWasAddedUntilItIsRemoved) {
  Handles handles;
  const auto operation = std::make_shared<Operation>();
  const int64_t handle = handles.add(operation);
  EXPECT_EQ(operation->handle, handle);
  EXPECT_EQ(handles.find(handle), operation);
  handles.remove(handle);
  EXPECT_EQ(handles.find(handle), nullptr);
  EXPECT_EQ(operation.use_count(), 1);
}

TEST(Handles, WhatWasNeverGivenOutIsNotFound) {
  Handles handles;
  const int64_t handle = handles.add(std::make_shared<Operation>());
  for (int64_t other : {int64_t{0}, int64_t{-1}, handle + 1, handle + 64, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(handles.find(other), nullptr);
    handles.remove(other);
  }
  EXPECT_NE(handles.find(handle), nullptr);
}

TEST(Handles, ManyAtOnceAreAllFound) {
  Handles handles;
  std::vector<OperationPtr> operations;
  std::set<int64_t> given;
  for (int i = 0; i < 1000; ++i) {
    operations.push_back(std::make_shared<Operation>());
    given.insert(handles.add(operations.back()));
  }
  EXPECT_EQ(given.size(), operations.size());
  for (const OperationPtr& operation : operations) {
    EXPECT_EQ(handles.find(operation->handle), operation);
  }
}

TEST(Handles, NoneIsGivenOutTwiceAlthoughSomeAreKeptForLong) {
  Handles handles;
  const auto kept = std::make_shared<Operation>();
  const int64_t long_lived = handles.add(kept);
  std::set<int64_t> given = {long_lived};
  for (int i = 0; i < 1000; ++i) {
    const int64_t handle = handles.add(std::make_shared<Operation>());
    EXPECT_TRUE(given.insert(handle).second);
    handles.remove(handle);
  }
  EXPECT_EQ(handles.find(long_lived), kept);
  for (int64_t handle : given) EXPECT_EQ(handles.find(handle) != nullptr, handle == long_lived);
}

}  // namespace
}  // namespace perseus
