#include "engine/submission_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace perseus {
namespace {

struct SubmissionQueueTest : testing::Test, SubmissionSink {
  void accept(std::span<const RefusedCall> refused, std::span<OperationPtr> operations) override {
    for (const RefusedCall& call : refused) seen.push_back("refused " + call.key);
    for (const OperationPtr& operation : operations) seen.push_back(operation->key);
  }
  OperationPtr operation(const std::string& name) {
    auto made = std::make_shared<Operation>();
    made->name_id = names.id_of(0, OperationKind::kAllreduce, name);
    EXPECT_TRUE(names.take(made->name_id));
    made->holds_name = true;
    made->key = name;
    return made;
  }

  EventLoop loop;
  Names names;
  ThreadBinding binding;
  SubmissionQueue queue{loop, names, binding, *this};
  std::vector<std::string> seen;
};

TEST_F(SubmissionQueueTest, HandsOnAllInOrderRefusedCallsFirst) {
  EXPECT_FALSE(queue.poll());
  EXPECT_TRUE(queue.submit(operation("a")).is_ok());
  queue.refuse(0, "c", "why");
  EXPECT_TRUE(queue.submit(operation("b")).is_ok());
  EXPECT_TRUE(queue.has_news());
  EXPECT_FALSE(queue.prepare_to_sleep());
  EXPECT_TRUE(queue.poll());
  EXPECT_EQ(seen, (std::vector<std::string>{"refused c", "a", "b"}));
  EXPECT_FALSE(queue.has_news());
  EXPECT_TRUE(queue.prepare_to_sleep());
  EXPECT_FALSE(queue.poll());
}

TEST_F(SubmissionQueueTest, OnceClosedGivesTheReasonAndTheNameBack) {
  queue.close(Status::aborted("the end"));
  queue.close(Status::aborted("a later reason"));
  const OperationPtr late = operation("late");
  const Status status = queue.submit(late);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_NE(status.message().find("the end"), std::string::npos);
  EXPECT_FALSE(names.is_in_flight(late->name_id));
  EXPECT_FALSE(queue.has_news());
}

TEST_F(SubmissionQueueTest, ABoundOperationKeepsTheLoopOnItsThread) {
  EXPECT_TRUE(queue.may_hand_off_loop());
  const OperationPtr bound = operation("bound");
  bound->is_bound = true;
  EXPECT_TRUE(queue.submit(bound).is_ok());
  EXPECT_FALSE(queue.may_hand_off_loop());
  binding.remove_operation();
  EXPECT_TRUE(queue.may_hand_off_loop());
  binding.bind_all();
  EXPECT_FALSE(queue.may_hand_off_loop());
}

}  // namespace
}  // namespace perseus
