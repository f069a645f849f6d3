#include "state/operation.h"

#include <gtest/gtest.h>

#include <memory>

namespace perseus {
namespace {

Operation& named(Operation& operation) {
  operation.name_id = 5;
  operation.key = operation_key(OperationKind::kAllreduce, "weight");
  return operation;
}

TEST(Operation, TheEndOfTheJobSaysWhichOperationItEnded) {
  Operation operation;
  const Status status = status_for(named(operation), Status::aborted("lost rank 1"));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.message(), "allreduce of 'weight': lost rank 1");
}

TEST(Operation, OtherErrorsAreToldAsTheyAre) {
  Operation operation;
  EXPECT_EQ(status_for(named(operation), Status::mismatch("shapes")).message(), "shapes");
  EXPECT_TRUE(status_for(operation, Status::ok()).is_ok());
}

TEST(Operation, OneOfTheEnginesOwnHasNoNameToTell) {
  Operation operation;
  EXPECT_EQ(status_for(operation, Status::aborted("lost rank 1")).message(), "lost rank 1");
}

TEST(Operation, ItsNameIsGivenBackOnce) {
  Names names;
  const int32_t id = names.id_of(0, OperationKind::kAllreduce, "weight");
  ASSERT_TRUE(names.take(id));
  Operation operation;
  operation.name_id = id;
  operation.holds_name = true;
  operation.give_back_name(names);
  ASSERT_TRUE(names.take(id));  // for a later operation
  operation.give_back_name(names);
  EXPECT_TRUE(names.is_in_flight(id)) << "an earlier operation gave back a later one's name";
}

TEST(Operation, ARecycledOneIsAsNew) {
  Operation operation;
  named(operation);
  operation.description.kind = OperationKind::kBroadcast;
  operation.description.tensors.push_back({DataType::kFloat64, {3}});
  operation.tensors.emplace_back();
  operation.splits = {1};
  operation.received_splits = {1};
  operation.callback = [](Operation&) {};
  operation.is_bound = true;
  operation.first_error = operation.status = Status::internal("x");
  operation.last_rank = operation.new_set = 4;
  operation.non_finite.emplace();
  operation.done.set();
  operation.launched.set();
  operation.recycle();
  EXPECT_EQ(operation.name_id, -1);
  EXPECT_TRUE(operation.key.empty());
  EXPECT_EQ(operation.description.kind, OperationKind::kAllreduce);
  EXPECT_TRUE(operation.description.tensors.empty() && operation.tensors.empty());
  EXPECT_TRUE(operation.splits.empty() && operation.received_splits.empty());
  EXPECT_FALSE(operation.callback);
  EXPECT_FALSE(operation.is_bound);
  EXPECT_TRUE(operation.first_error.is_ok() && operation.status.is_ok());
  EXPECT_EQ(operation.last_rank, -1);
  EXPECT_EQ(operation.new_set, -1);
  EXPECT_FALSE(operation.non_finite);
  EXPECT_FALSE(operation.done.is_set());
  EXPECT_FALSE(operation.launched.is_set());
}

}  // namespace
}  // namespace perseus
