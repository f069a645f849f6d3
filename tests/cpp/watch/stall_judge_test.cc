// Ranks that ask each other what they wait for, in one thread.
#include "watch/stall_judge.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/run_until.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 200ms;
constexpr auto kPatience = 700ms;

struct JudgingWorld;

struct JudgingRank final : StallJudgeHost, NegotiatorHost {
  JudgingRank(JudgingWorld& world, int rank, int size);

  void send_to(int to, std::span<const std::byte> message) override;
  const std::map<int32_t, ProcessSetPtr>& process_sets() const override { return sets; }
  bool has_left(int other) const override { return other == leaver; }
  std::string name_of(int other) const override { return "rank " + std::to_string(other); }
  std::vector<int> awaited_for_data() const override { return awaited; }
  const Operation* longest_under_way() const override { return under_way.get(); }
  void end_stalled(const StallVerdict& verdict) override;
  void send(int, std::span<const std::byte>) override {}
  void agreed(const Agreement&) override {}

  void receive(int from, const std::vector<std::byte>& message) {
    ByteReader reader(message);
    if (reader.get<ControlKind>() == ControlKind::kWaitQuery) {
      ++questions;
      if (when_asked) std::exchange(when_asked, nullptr)();
      if (answers) judge.answer(from, *WaitQuery::read(reader));
    } else {
      judge.on_answer(from, *WaitAnswer::read(reader));
    }
  }
  void submit(const std::string& name, OperationKind kind = OperationKind::kAllreduce,
              std::chrono::milliseconds ago = 0ms) {
    auto operation = std::make_shared<Operation>();
    operation->name_id = 0;
    operation->description.kind = kind;
    operation->key = operation_key(kind, name);
    operation->submitted_at = Clock::now() - ago;
    sets[0]->pending.insert(operation->key, operation);
    last.note(*operation);
    judge.watch();
  }
  void agree(const std::string& name) {
    sets[0]->pending.extract(operation_key(OperationKind::kAllreduce, name));
  }
  void drop_all() {
    std::vector<std::string> keys;
    for (const auto& [key, operation] : sets[0]->pending) keys.emplace_back(key);
    for (const std::string& key : keys) sets[0]->pending.extract(key);
  }
  // The operation was agreed on long ago, and data for it does not come from this rank.
  void await_data(const std::string& name, int from) {
    under_way = std::make_shared<Operation>();
    under_way->key = operation_key(OperationKind::kAllreduce, name);
    under_way->submitted_at = Clock::now();
    awaited = {from};
  }

  JudgingWorld& world;
  const int rank;
  std::map<int32_t, ProcessSetPtr> sets;
  LastSubmission last;
  StallJudge judge;
  bool answers = true;
  std::function<void()> when_asked;  // called once, before the answer
  int leaver = -1;
  int questions = 0;
  OperationPtr under_way;    // agreed on, and not done
  std::vector<int> awaited;  // for its data
  std::vector<StallVerdict> verdicts;
};

struct JudgingWorld {
  explicit JudgingWorld(int size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::make_unique<JudgingRank>(*this, rank, size));
    }
  }
  JudgingRank& operator[](int rank) { return *ranks[rank]; }
  bool has_verdict() const {
    return std::ranges::any_of(ranks, [](const auto& rank) { return !rank->verdicts.empty(); });
  }

  EventLoop loop;
  std::vector<std::unique_ptr<JudgingRank>> ranks;
};

JudgingRank::JudgingRank(JudgingWorld& world, int rank, int size)
    : world(world), rank(rank), judge(world.loop, kLimit, kPatience, rank, size, last, *this) {
  auto set = std::make_shared<ProcessSet>();
  set->ranks.resize(size);
  std::iota(set->ranks.begin(), set->ranks.end(), 0);
  set->index = rank;
  set->negotiator =
      std::make_unique<Negotiator>(rank, size, set->ranks, 16, std::vector<std::byte>(), *this);
  sets[0] = std::move(set);
}

// As with engines, a verdict ends everything on all ranks.
void JudgingRank::end_stalled(const StallVerdict& verdict) {
  verdicts.push_back(verdict);
  for (const auto& each : world.ranks) each->drop_all();
}

void JudgingRank::send_to(int to, std::span<const std::byte> message) {
  world.loop.post([&from = *this, to, copy = std::vector(message.begin(), message.end())] {
    from.world[to].receive(from.rank, copy);
  });
}

class StallJudgeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int last() const { return size() - 1; }
};

TEST_P(StallJudgeTest, OneRankDecidesThatTheOneThatTakesNoPartIsGivenUp) {
  JudgingWorld world(size());
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("x");
  run_until(world.loop, [&] { return world.has_verdict(); });
  run_for(world.loop, 50ms);
  ASSERT_EQ(world[0].verdicts.size(), 1u);
  EXPECT_EQ(world[0].verdicts[0].given_up, std::vector{last()});
  for (int rank = 1; rank < size(); ++rank) EXPECT_TRUE(world[rank].verdicts.empty()) << rank;
}

TEST_P(StallJudgeTest, TheLowestRankDecidesThoughItHasNotWaitedForSoLong) {
  if (size() == 2) GTEST_SKIP() << "takes two that wait";
  JudgingWorld world(size());
  for (int rank = 1; rank < last(); ++rank) world[rank].submit("x");
  world[0].submit("x", OperationKind::kAllreduce, -kLimit / 4);
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_EQ(world[0].verdicts.size(), 1u);
}

TEST_P(StallJudgeTest, WhatIsAgreedOnInTimeLeadsToNoQuestion) {
  JudgingWorld world(size());
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("x");
  // A timer, so that it is in time however slow the machine is.
  world.loop.call_at(Clock::now() + kLimit / 2, [&] {
    for (int rank = 0; rank < last(); ++rank) world[rank].agree("x");
  });
  run_for(world.loop, kLimit + kLimit / 2);
  EXPECT_EQ(world[last()].questions, 0);
}

TEST_P(StallJudgeTest, ARankThatComesWhileItIsAskedIsNotGivenUp) {
  JudgingWorld world(size());
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("x");
  world[last()].when_asked = [&] { world[last()].submit("x"); };
  run_until(world.loop, [&] { return world[last()].questions > 0; });
  run_for(world.loop, 50ms);
  EXPECT_FALSE(world.has_verdict());
}

TEST_P(StallJudgeTest, ARankWhoseEngineDoesNotAnswerIsGivenUpOnceThatHasTakenTooLong) {
  JudgingWorld world(size());
  world[last()].answers = false;
  const auto began = Clock::now();
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("x");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_GE(Clock::now() - began, kLimit + kPatience);
  EXPECT_EQ(world[0].verdicts[0].given_up, std::vector{last()});
}

TEST_P(StallJudgeTest, RanksThatHaveLeftAreNotAsked) {
  if (size() == 2) GTEST_SKIP() << "takes two that are left";
  JudgingWorld world(size());
  for (int rank = 0; rank < last(); ++rank) {
    world[rank].leaver = last();
    world[rank].sets[0]->ranks.pop_back();
  }
  world[0].submit("x");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_EQ(world[last()].questions, 0);
  EXPECT_EQ(world[0].verdicts[0].given_up.front(), 1);
}

TEST_P(StallJudgeTest, RanksThatHaveJoinedWaitForAsLongAsTheOthersAgree) {
  JudgingWorld world(size());
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("", OperationKind::kJoin);
  for (int i = 0; i < 6; ++i) {
    run_for(world.loop, kLimit / 2);
    for (int rank = 0; rank < last(); ++rank) world[rank].judge.note_agreement_without_submission();
    ASSERT_FALSE(world.has_verdict());
  }
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_EQ(world[0].verdicts[0].given_up, std::vector{last()});
}

TEST_P(StallJudgeTest, TwoSidesThatWaitForEachOtherAreBothNamed) {
  JudgingWorld world(size());
  for (int rank = 0; rank < size(); ++rank) world[rank].submit(rank < last() ? "x" : "y");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_TRUE(world[0].verdicts[0].given_up.empty());
  for (const char* name : {"'allreduce.x'", "'allreduce.y'"}) {
    EXPECT_NE(world[0].verdicts[0].why.find(name), std::string::npos) << world[0].verdicts[0].why;
  }
}

TEST_P(StallJudgeTest, ARankWhoseDataDoesNotComeIsNotGivenUp) {
  JudgingWorld world(size());
  world[last()].await_data("x", 0);
  for (int rank = 0; rank < last(); ++rank) world[rank].submit("y");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_TRUE(world[0].verdicts[0].given_up.empty());
  const char* expected = " for data of 'allreduce.x' from rank 0";
  EXPECT_NE(world[0].verdicts[0].why.find(expected), std::string::npos) << world[0].verdicts[0].why;
}

TEST_P(StallJudgeTest, TheLowestRankThatAsksDecidesThoughALowerOneWaitsForData) {
  JudgingWorld world(size());
  world[0].await_data("x", last());
  for (int rank = 1; rank < size(); ++rank) world[rank].submit("y");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_EQ(world[1].verdicts.size(), 1u);
  EXPECT_TRUE(world[1].verdicts[0].given_up.empty());
}

TEST_P(StallJudgeTest, TheRankWhoseDataAnotherWaitsForIsGivenUpIfItTakesNoPart) {
  if (size() == 2) GTEST_SKIP() << "takes a third one that waits";
  JudgingWorld world(size());
  world[1].await_data("x", last());
  world[0].submit("y");
  for (int rank = 2; rank < last(); ++rank) world[rank].submit("y");
  run_until(world.loop, [&] { return world.has_verdict(); });
  EXPECT_EQ(world[0].verdicts[0].given_up, std::vector{last()});
}

INSTANTIATE_TEST_SUITE_P(Sizes, StallJudgeTest, testing::Values(2, 3, 4));

}  // namespace
}  // namespace perseus
