// An operation's way through the engine, process sets, and every way in which it ends.
#include "engine/engine_parts.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "engine/engine_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

class EnginePartsTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float sum_of_ranks() const { return static_cast<float>(size() * (size() - 1)) / 2; }
};

TEST_P(EnginePartsTest, SumsWhatAllRanksSubmit) {
  run_engine_world(size(), [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    for (int step = 0; step < 20; ++step) {
      std::vector<OperationPtr> operations;
      for (int t = 0; t < 10; ++t) {
        operations.push_back(rank.submit("tensor" + std::to_string(t),
                                         static_cast<float>(rank.rank()), 1 + 1000 * t));
      }
      for (const OperationPtr& operation : operations) {
        ASSERT_TRUE(EngineRank::wait(operation).is_ok()) << operation->status.message();
        EXPECT_EQ(EngineRank::first(operation), sum_of_ranks());
      }
    }
  });
}

TEST_P(EnginePartsTest, AMismatchFailsOnAllRanksAndTheWorldGoesOn) {
  if (size() == 1) GTEST_SKIP() << "takes two";
  run_engine_world(size(), [&](EngineRank& rank) {
    const OperationPtr wrong = rank.submit("wrong", 1, rank.rank() == 0 ? 3 : 4);
    const Status status = EngineRank::wait(wrong);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    const OperationPtr right = rank.submit("right", 1);
    EXPECT_TRUE(EngineRank::wait(right).is_ok());
    EXPECT_EQ(EngineRank::first(right), static_cast<float>(size()));
  });
}

TEST_P(EnginePartsTest, ACallThatWasRefusedHereFailsOnTheOthers) {
  if (size() == 1) GTEST_SKIP() << "takes two";
  run_engine_world(size(), [&](EngineRank& rank) {
    if (rank.rank() == 0) {
      rank.parts().queue.refuse(ProcessSet::kWorld, operation_key(OperationKind::kAllreduce, "odd"),
                                "its input is no tensor");
    } else {
      const Status status = EngineRank::wait(rank.submit("odd", 1));
      EXPECT_EQ(status.code(), StatusCode::kMismatch);
      EXPECT_NE(status.message().find("its input is no tensor"), std::string::npos)
          << status.message();
    }
  });
}

TEST_P(EnginePartsTest, SetsThatAreAddedHaveTheSameIdOnAllRanks) {
  run_engine_world(size(), [&](EngineRank& rank) {
    InternalOperations& internal = rank.parts().internal_operations;
    if (size() == 1) {
      EXPECT_FALSE(internal.add_process_set({0}).is_ok()) << "the world's ranks";
      return;
    }
    const auto id = internal.add_process_set({0, 1});
    if (size() == 2) {
      EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument) << "the world's ranks";
      return;
    }
    ASSERT_TRUE(id.is_ok()) << id.status().message();
    EXPECT_EQ(id.value(), 1);
    EXPECT_EQ(rank.parts().sets.ids(), (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(*rank.parts().sets.ranks(1).value(), (std::vector<int>{0, 1}));
    if (rank.rank() < 2) {
      const OperationPtr operation = rank.submit("in the set", 1, 1, 1);
      EXPECT_TRUE(EngineRank::wait(operation).is_ok());
      EXPECT_EQ(EngineRank::first(operation), 2.0f);
    }
    EXPECT_TRUE(internal.remove_process_set(1).is_ok());
    EXPECT_EQ(rank.parts().sets.ids(), (std::vector<int32_t>{0}));
    EXPECT_EQ(internal.remove_process_set(1).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(internal.add_process_set({0, 0}).status().code(), StatusCode::kInvalidArgument);
  });
}

TEST_P(EnginePartsTest, ASetThatItsMembersOpenIsTheirsAlone) {
  constexpr int32_t kId = ProcessSet::kFirstOpened + 3;
  run_engine_world(size(), [&](EngineRank& rank) {
    InternalOperations& internal = rank.parts().internal_operations;
    std::vector<int32_t> members;
    for (int r = 0; r < size(); r += 2) members.push_back(r);
    if (rank.rank() % 2 == 1) {
      EXPECT_EQ(internal.open_process_set(kId, members).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(rank.parts().sets.ids(), (std::vector<int32_t>{0}));
      return;
    }
    // Messages of members that were faster wait for this one.
    if (rank.rank() == 0) std::this_thread::sleep_for(50ms);
    ASSERT_TRUE(internal.open_process_set(kId, members).is_ok());
    const OperationPtr operation = rank.submit("theirs", 1, 1, kId);
    EXPECT_TRUE(EngineRank::wait(operation).is_ok());
    EXPECT_EQ(EngineRank::first(operation), static_cast<float>(members.size()));
    EXPECT_TRUE(internal.close_process_set(kId).is_ok());
    EXPECT_FALSE(internal.open_process_set(kId, members).is_ok()) << "an id is used once";
    EXPECT_EQ(EngineRank::wait(rank.submit("late", 1, 1, kId)).code(),
              StatusCode::kInvalidArgument);
  });
}

TEST_P(EnginePartsTest, SetsAreOpenedAndClosedWhoeverHasLeft) {
  constexpr int32_t kUsed = ProcessSet::kFirstOpened, kLate = kUsed + 1;
  std::vector<int32_t> everyone;
  for (int r = 0; r < size(); ++r) everyone.push_back(r);
  ThreadRendezvous left(size());
  run_engine_world(size(), [&](EngineRank& rank) {
    InternalOperations& internal = rank.parts().internal_operations;
    ASSERT_TRUE(internal.open_process_set(kUsed, everyone).is_ok());
    EXPECT_TRUE(EngineRank::wait(rank.submit("in the set", 1, 1, kUsed)).is_ok());
    if (rank.rank() == 1) {
      EXPECT_TRUE(internal.close_process_set(kUsed).is_ok());
      rank.leave();
    }
    ASSERT_TRUE(left.all_gather(rank.rank(), "", 60s).is_ok());
    if (rank.rank() == 1) return;
    Status status = internal.open_process_set(kLate, everyone);
    EXPECT_TRUE(status.is_ok()) << status.message();
    status = EngineRank::wait(rank.submit("in the late one", 1, 1, kLate));
    EXPECT_EQ(status.is_ok(), size() == 1) << status.message();
    for (const int32_t set : {kLate, kUsed}) {
      status = internal.close_process_set(set);
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
  });
}

// Nothing that was agreed on in the set is taken for something that the rank has no part in.
TEST_P(EnginePartsTest, LeavingRightAfterClosingASetBreaksNothing) {
  constexpr int32_t kId = ProcessSet::kFirstOpened;
  std::vector<int32_t> everyone;
  for (int r = 0; r < size(); ++r) everyone.push_back(r);
  for (int round = 0; round < 10; ++round) {
    run_engine_world(size(), [&](EngineRank& rank) {
      InternalOperations& internal = rank.parts().internal_operations;
      ASSERT_TRUE(internal.open_process_set(kId, everyone).is_ok());
      for (const size_t count : {1, 20000, 200000}) {
        const OperationPtr operation = rank.submit("sum", 1, count, kId);
        const Status status = EngineRank::wait(operation);
        EXPECT_TRUE(status.is_ok()) << status.message();
      }
      const Status closed = internal.close_process_set(kId);
      EXPECT_TRUE(closed.is_ok()) << closed.message();
      rank.leave();
    });
  }
}

TEST_P(EnginePartsTest, WhatWaitsForARankThatLeftFailsWithItsName) {
  if (size() == 1) GTEST_SKIP() << "takes two";
  ThreadRendezvous submitted(size());
  run_engine_world(size(), [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    OperationPtr operation;
    if (rank.rank() != 1) operation = rank.submit("without rank 1", 1);
    ASSERT_TRUE(submitted.all_gather(rank.rank(), "", 60s).is_ok());
    if (rank.rank() == 1) return rank.leave();
    const Status status = EngineRank::wait(operation);
    EXPECT_FALSE(status.is_ok());
    EXPECT_NE(status.message().find("rank 1 "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("has shut down or ended"), std::string::npos);
  });
}

TEST_P(EnginePartsTest, AReasonForLeavingReachesTheOthers) {
  if (size() == 1) GTEST_SKIP() << "takes two";
  run_engine_world(size(), [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    if (rank.rank() == 1) return rank.leave("it ran out of data");
    const Status status = EngineRank::wait(rank.submit("without rank 1", 1));
    EXPECT_NE(status.message().find("has ended: it ran out of data"), std::string::npos)
        << status.message();
  });
}

TEST_P(EnginePartsTest, ABrokenWorldEndsEverythingEverywhere) {
  ThreadRendezvous submitted(size());
  run_engine_world(size(), [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    const int breaker = size() - 1;
    // One that is never ready everywhere.
    const OperationPtr operation = rank.submit("mine " + std::to_string(rank.rank()), 1);
    ASSERT_TRUE(submitted.all_gather(rank.rank(), "", 60s).is_ok());
    if (rank.rank() == breaker) {
      rank.loop().post([&] {
        Termination& termination = rank.parts().termination;
        termination.break_world(termination.failed_here(Status::internal("out of luck")));
      });
    }
    if (size() > 1 || rank.rank() == breaker) {
      const Status status = EngineRank::wait(operation);
      if (size() == 1) return;  // it may have been done before
      EXPECT_EQ(status.code(), StatusCode::kAborted);
      EXPECT_NE(status.message().find("allreduce of 'mine"), std::string::npos);
      EXPECT_NE(status.message().find("cannot go on: out of luck"), std::string::npos)
          << status.message();
    }
    EXPECT_EQ(EngineRank::wait(rank.submit("later", 1)).code(), StatusCode::kAborted);
  });
}

TEST_P(EnginePartsTest, ASetEndsWithABrokenWorldAndCanBeClosed) {
  constexpr int32_t kId = ProcessSet::kFirstOpened;
  ThreadRendezvous opened(size());
  run_engine_world(size(), [&](EngineRank& rank) {
    InternalOperations& internal = rank.parts().internal_operations;
    ASSERT_TRUE(internal.open_process_set(kId, {rank.rank()}).is_ok());
    ASSERT_TRUE(opened.all_gather(rank.rank(), "", 60s).is_ok());
    std::promise<void> broken;
    rank.loop().post([&] {
      Termination& termination = rank.parts().termination;
      termination.break_world(termination.failed_here(Status::internal("out of luck")));
      broken.set_value();
    });
    broken.get_future().wait();
    const Status closed = internal.close_process_set(kId);
    EXPECT_TRUE(closed.is_ok()) << closed.message();
    EXPECT_EQ(internal.open_process_set(kId + 1, {rank.rank()}).code(), StatusCode::kAborted);
  });
}

// A rank's GPU may hang, and each rank finds by itself that a collective does not end.
TEST_P(EnginePartsTest, TheRankThatReportsATimeOutIsNotToBlameForIt) {
  if (size() == 1) GTEST_SKIP() << "takes two";
  ThreadRendezvous submitted(size());
  run_engine_world(size(), [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    const OperationPtr operation = rank.submit("mine " + std::to_string(rank.rank()), 1);
    ASSERT_TRUE(submitted.all_gather(rank.rank(), "", 60s).is_ok());
    if (rank.rank() == 1) {
      rank.loop().post([&] {
        EXPECT_FALSE(rank.parts().termination.shard_failed(Status::timed_out("slow")).is_ok());
      });
    }
    const Status status = EngineRank::wait(operation);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("cannot go on: slow"), std::string::npos) << status.message();
    std::promise<int> blamed;
    rank.loop().post([&] { blamed.set_value(rank.parts().blame.rank()); });
    EXPECT_EQ(blamed.get_future().get(), -1);
  });
}

// Each makes no sense, though some are well-formed.
class NonsenseTest : public testing::TestWithParam<std::vector<std::byte>> {};

TEST_P(NonsenseTest, BreaksTheWorldInItsSendersName) {
  constexpr int kSize = 3;
  ThreadRendezvous submitted(kSize);
  run_engine_world(kSize, [&](EngineRank& rank) {
    ASSERT_TRUE(rank.parts().internal_operations.meet(20s).is_ok());
    const OperationPtr operation = rank.submit("mine " + std::to_string(rank.rank()), 1);
    ASSERT_TRUE(submitted.all_gather(rank.rank(), "", 60s).is_ok());
    if (rank.rank() == 1) {
      rank.loop().post([&] { rank.mesh().send_control(0, GetParam()); });
    }
    const Status status = EngineRank::wait(operation);
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("rank 1 "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("sent a malformed control message"), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, NonsenseTest,
    testing::Values(std::vector<std::byte>{std::byte{200}, std::byte{1}},
                    Leaving{3, "it has ended", {}}.write(), Leaving{-1, "", {}}.write(),
                    Broken{1 << 30, "lost"}.write(), Broken{3, "lost", true}.write(),
                    Broken{-2, "lost"}.write(), Broken{0, "lost", false, {1, -7}}.write(),
                    Broken{0, "lost", false, {1 << 30}}.write(), Closed{0, 3, 1}.write(),
                    Closed{0, -9, 1}.write()));

INSTANTIATE_TEST_SUITE_P(Sizes, EnginePartsTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace perseus
