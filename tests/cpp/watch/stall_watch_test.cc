// Two ranks' watches, which tell each other what they have pending, in one thread.
#include "watch/stall_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/run_until.h"
#include "base/settings.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

Settings test_settings() {
  Settings settings;
  settings.stall_check_time = 1;
  return settings;
}

struct WatchingRank final : StallWatchHost, NegotiatorHost {
  WatchingRank(EventLoop& loop, int own_rank)
      : rank(own_rank), settings(test_settings()), loop(loop) {
    set->ranks = {0, 1};
    set->index = rank;
    set->negotiator =
        std::make_unique<Negotiator>(rank, 2, set->ranks, 16, std::vector<std::byte>(), *this);
  }

  void send_to(int to, std::span<const std::byte> message) override {
    EXPECT_EQ(to, 1 - rank);
    loop.post([this, copy = std::vector(message.begin(), message.end())] { other->receive(copy); });
  }
  std::vector<int> awaited_for_data() const override { return awaited; }
  void send(int, std::span<const std::byte>) override {}
  void agreed(const Agreement&) override {}

  void receive(const std::vector<std::byte>& message) {
    ByteReader reader(message);
    if (reader.get<ControlKind>() == ControlKind::kStallQuery) {
      ++questions;
      watch.answer(1 - rank, *StallQuery::read(reader), set.get());
    } else {
      watch.on_answer(1 - rank, *StallAnswer::read(reader));
    }
  }
  void submit(const std::string& name) {
    auto operation = std::make_shared<Operation>();
    operation->name_id = 0;
    operation->key = operation_key(OperationKind::kAllreduce, name);
    operation->submitted_at = Clock::now();
    set->pending.insert(operation->key, operation);
    last.note(*operation);
    watch.watch(set);
  }

  const int rank;
  const Settings settings;
  EventLoop& loop;
  Counters counters;
  ProcessSetPtr set = std::make_shared<ProcessSet>();
  WatchingRank* other = nullptr;
  LastSubmission last;
  StallWatch watch{loop, settings, rank, last, counters, *this};
  int questions = 0;
  std::vector<int> awaited;  // for data
};

struct StallWatchTest : testing::Test {
  StallWatchTest() {
    first = std::make_unique<WatchingRank>(loop, 0);
    second = std::make_unique<WatchingRank>(loop, 1);
    first->other = second.get();
    second->other = first.get();
  }
  EventLoop loop;
  std::unique_ptr<WatchingRank> first, second;
};

TEST_F(StallWatchTest, ReportsWhatAnotherRankHasNotSubmitted) {
  first->submit("x");
  second->submit("y");
  run_until(loop, [&] { return first->counters.stall_warnings.value() > 0; });
  EXPECT_EQ(second->questions, 1);
  EXPECT_EQ(first->counters.stall_warnings.value(), 1u);
}

TEST_F(StallWatchTest, TellsTheMissingRankHowLongTheOthersHaveWaited) {
  first->submit("x");
  testing::internal::CaptureStderr();
  run_until(loop, [&] { return second->questions == 3; });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* waited : {"1 s", "2 s", "3 s"}) {
    const std::string text = std::string("(and perhaps others) has waited for ") + waited + ";";
    EXPECT_NE(said.find(text), std::string::npos) << text << " is not in\n" << said;
  }
}

TEST_F(StallWatchTest, SaysWhoseDataTheMissingRankWaitsFor) {
  second->submit("y");
  second->set->pending.extract(operation_key(OperationKind::kAllreduce, "y"));
  second->awaited = {0};
  first->submit("x");
  testing::internal::CaptureStderr();
  run_until(loop, [&] { return first->counters.stall_warnings.value() > 0; });
  const std::string said = testing::internal::GetCapturedStderr();
  const char* expected = "rank 1 last submitted 'allreduce.y', and waits for data from rank 0";
  EXPECT_NE(said.find(expected), std::string::npos) << said;
}

TEST_F(StallWatchTest, AsksNothingAboutWhatIsDoneInTime) {
  first->submit("x");
  first->set->pending.extract(operation_key(OperationKind::kAllreduce, "x"));
  first->watch.note_agreement();
  run_for(loop, 2s);
  EXPECT_EQ(second->questions, 0);
  EXPECT_EQ(first->counters.stall_warnings.value(), 0u);
}

TEST_F(StallWatchTest, AReportedOperationThatIsDoneLaterIsSaidToHaveCleared) {
  first->submit("x");
  run_until(loop, [&] { return first->counters.stall_warnings.value() > 0; });
  first->set->pending.extract(operation_key(OperationKind::kAllreduce, "x"));
  testing::internal::CaptureStderr();
  first->watch.note_agreement();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("'allreduce.x'"), std::string::npos);
}

}  // namespace
}  // namespace perseus
