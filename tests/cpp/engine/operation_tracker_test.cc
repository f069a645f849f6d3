#include "engine/operation_tracker.h"

#include <gtest/gtest.h>

#include <memory>

namespace perseus {
namespace {

struct OperationTrackerTest : testing::Test {
  OperationPtr begin(const std::string& name, int64_t floats = 2) {
    auto operation = std::make_shared<Operation>();
    operation->name_id = names.id_of(0, OperationKind::kAllreduce, name);
    EXPECT_TRUE(names.take(operation->name_id));
    operation->holds_name = true;
    operation->key = operation_key(OperationKind::kAllreduce, name);
    operation->description.tensors = {{DataType::kFloat32, {floats}}};
    tracker.begin(*operation);
    return operation;
  }

  Names names;
  Timeline timeline;
  Counters counters;
  ThreadBinding binding;
  Topology topology{0, 2, {0, 0}, {"here"}, {0, 1}};
  Blame blame{topology, "world"};
  Announcements announcements;
  OperationTracker tracker{names, timeline, counters, binding, announcements, blame};
};

TEST_F(OperationTrackerTest, CountsWhatIsUnderWay) {
  EXPECT_TRUE(tracker.is_idle());
  const OperationPtr a = begin("a"), b = begin("b", 10);
  EXPECT_FALSE(tracker.is_idle());
  EXPECT_EQ(tracker.bytes(), 48);
  tracker.complete(a, Status::ok());
  EXPECT_EQ(tracker.bytes(), 40);
  tracker.operation_done(b, Status::ok());
  EXPECT_TRUE(tracker.is_idle());
  EXPECT_EQ(tracker.bytes(), 0);
}

TEST_F(OperationTrackerTest, CompletingGivesTheNameBackAndCallsBack) {
  const OperationPtr operation = begin("a");
  operation->is_bound = true;
  binding.add_operation();
  Status seen = Status::internal("not called");
  operation->callback = [&](Operation& done) {
    seen = done.status;
    EXPECT_TRUE(done.done.is_set());
    EXPECT_FALSE(names.is_in_flight(done.name_id)) << "a callback may submit the name anew";
    EXPECT_TRUE(binding.is_bound()) << "it runs on the engine's own thread";
  };
  tracker.complete(operation, Status::aborted("lost rank 1"));
  EXPECT_EQ(seen.message(), "allreduce of 'a': lost rank 1");
  EXPECT_EQ(operation->status.message(), seen.message());
  EXPECT_FALSE(binding.is_bound());
}

TEST_F(OperationTrackerTest, WhatWasAnnouncedIsNotedBeforeTheOperationIsDone) {
  const OperationPtr low = begin("low"), high = begin("high"), failed = begin("failed");
  low->announced = 3;
  high->announced = 5;
  failed->announced = 7;
  high->callback = [&](Operation&) { EXPECT_EQ(announcements.announced(), 5u); };
  tracker.complete(high, Status::ok());
  tracker.operation_done(low, Status::ok());
  EXPECT_EQ(announcements.announced(), 5u) << "it never falls";
  tracker.complete(failed, Status::aborted("lost rank 1"));
  EXPECT_EQ(announcements.announced(), 5u) << "others may not have heard of it";
}

TEST_F(OperationTrackerTest, ThreadsThatWaitAreWoken) {
  const OperationPtr operation = begin("a");
  std::thread waiter([&] { EXPECT_TRUE(operation->done.wait(std::chrono::seconds(60))); });
  tracker.operation_done(operation, Status::ok());
  tracker.wake_waiters();
  waiter.join();
}

}  // namespace
}  // namespace perseus
