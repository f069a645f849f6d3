#include "transport/send_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace perseus {
namespace {

struct SendQueueTest : testing::Test {
  EventLoop loop;
  SendQueue queue{loop};
  std::deque<Transfer> transfers;
  std::vector<std::byte> memory = std::vector<std::byte>(1000);

  Transfer& push(uint64_t name, uint64_t bytes, int32_t priority) {
    Transfer& transfer = transfers.emplace_back();
    transfer.tag.operation = name;
    transfer.source = memory.data();
    transfer.bytes = bytes;
    transfer.priority = priority;
    queue.push(transfer);
    return transfer;
  }
  // The names of the frames' messages, in the order in which they leave.
  std::vector<uint64_t> drain(uint64_t room) {
    std::vector<uint64_t> names;
    Frame frame;
    while (queue.next(frame, room)) {
      names.push_back(frame.header.tag.operation);
      queue.sent(frame);
    }
    return names;
  }
};

TEST_F(SendQueueTest, HigherPriorityGoesFirstAndEqualOnesInOrder) {
  push(1, 1, 0);
  push(2, 1, 5);
  push(3, 1, 0);
  push(4, 1, 5);
  push(5, 1, -1);
  push(6, 1, 2);
  EXPECT_EQ(drain(64), (std::vector<uint64_t>{2, 4, 6, 1, 3, 5}));
  EXPECT_TRUE(queue.empty());
  for (Transfer& transfer : transfers) EXPECT_TRUE(transfer.done());
}

TEST_F(SendQueueTest, AnUrgentMessageOvertakesAtTheNextFrame) {
  push(1, 256, 0);
  Frame first;
  ASSERT_TRUE(queue.next(first, 64));
  push(2, 10, 1);
  EXPECT_EQ(drain(64), (std::vector<uint64_t>{2, 1, 1, 1}));
  EXPECT_FALSE(transfers[0].done());
  queue.sent(first);
  EXPECT_TRUE(transfers[0].done());
}

TEST_F(SendQueueTest, AnEmptyMessageIsOneFrame) {
  Transfer& empty = push(1, 0, 0);
  EXPECT_EQ(drain(64), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(empty.done());
}

TEST_F(SendQueueTest, ClearEndsWhatWaitsAndWhatIsLeaving) {
  push(1, 64, 0);
  push(2, 64, 0);
  Frame frame;
  ASSERT_TRUE(queue.next(frame, 64));
  queue.clear(Status::aborted("why"));
  EXPECT_TRUE(queue.empty());
  for (Transfer& transfer : transfers) {
    ASSERT_TRUE(transfer.done());
    EXPECT_EQ(transfer.await_resume().message(), "why");
  }
}

}  // namespace
}  // namespace perseus
