// The order of launches needs no GPU: only that it is the same on all ranks.
#include "execution/gpu/gpu_launches.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace perseus {
namespace {

constexpr uint64_t kCredit = 100;

struct Set final : NegotiatorHost {
  explicit Set(int32_t id) {
    set->id = id;
    set->ranks = {0};
    set->index = 0;
    set->negotiator =
        std::make_unique<Negotiator>(0, 1, set->ranks, 16, std::vector<std::byte>(), *this);
  }
  void send(int, std::span<const std::byte>) override {}
  void agreed(const Agreement&) override {}

  ProcessSetPtr set = std::make_shared<ProcessSet>();
};

struct GpuLaunchesTest : testing::Test, GpuLaunchesHost, ShardObserver {
  const ProcessSet& world() const override { return *world_.set; }
  bool may_be_preceded(int32_t set, uint64_t) override { return set == held_back; }
  void launch_ended(ProcessSet&) override {}
  void shard_finished(ShardRun&, const Status&) override {}

  // A shard of one tensor in the set, which is known by its name.
  ShardRun& add(Set& set, const std::string& name, int32_t priority = 0, uint64_t bytes = 1) {
    auto batch = std::make_shared<Batch>();
    batch->set = set.set;
    batch->agreed.push_back(
        {0, priority, std::make_shared<KnownOperation>(KnownOperation{name, {}})});
    runs.push_back(std::make_unique<ShardRun>(*this));
    ShardRun& run = *runs.back();
    run.batch = batch;
    run.shard.priority = priority;
    run.shard.bytes = bytes;
    launches.add(run, false);
    return run;
  }
  // Its task has come to where it awaits its turn, and notes that it has it.
  void prepare(ShardRun& run) { await_turn(run).start(nullptr); }
  Task await_turn(ShardRun& run) {
    const Status status = co_await launches.turn(run);
    launched.push_back(status.is_ok() ? run.agreed().key() : "cancelled " + run.agreed().key());
    co_return status;
  }
  void settle(Set& set, uint64_t time) {
    Agreement agreement;
    agreement.time = time;
    launches.hold();
    launches.settle(*set.set, agreement);
  }

  Set world_{0}, other{1};
  int32_t held_back = -1;
  GpuLaunches launches{kCredit, 2, *this};
  std::vector<std::unique_ptr<ShardRun>> runs;
  std::vector<std::string> launched;
};

TEST_F(GpuLaunchesTest, NothingIsLaunchedBeforeItIsSettled) {
  ShardRun& run = add(world_, "a");
  prepare(run);
  EXPECT_TRUE(launched.empty());
  settle(world_, 1);
  EXPECT_EQ(launched, std::vector<std::string>{"a"});
  EXPECT_FALSE(launches.is_idle());
  launches.end(run, *world_.set);
  EXPECT_TRUE(launches.is_idle());
}

TEST_F(GpuLaunchesTest, OneThatIsNotPreparedHoldsUpThoseBehindIt) {
  ShardRun& first = add(world_, "first");
  ShardRun& second = add(world_, "second");
  settle(world_, 1);
  prepare(second);
  EXPECT_TRUE(launched.empty());
  prepare(first);
  EXPECT_EQ(launched, (std::vector<std::string>{"first", "second"}));
  launches.end(first, *world_.set);
  launches.end(second, *world_.set);
}

TEST_F(GpuLaunchesTest, TheMoreUrgentOfAnAgreementGoesFirst) {
  ShardRun& late = add(world_, "late", 0);
  ShardRun& urgent = add(world_, "urgent", 5);
  prepare(late);
  prepare(urgent);
  settle(world_, 1);
  EXPECT_EQ(launched, (std::vector<std::string>{"urgent", "late"}));
  launches.end(urgent, *world_.set);
  launches.end(late, *world_.set);
}

TEST_F(GpuLaunchesTest, OfSeveralSetsTheEarlierAgreementGoesFirst) {
  ShardRun& later = add(world_, "later");
  ShardRun& earlier = add(other, "earlier");
  settle(world_, 9);
  settle(other, 4);
  prepare(later);
  prepare(earlier);
  EXPECT_EQ(launched, (std::vector<std::string>{"earlier", "later"}));
  launches.end(earlier, *other.set);
  launches.end(later, *world_.set);
}

TEST_F(GpuLaunchesTest, ASetWaitsWhileAnotherMayComeBeforeIt) {
  held_back = 0;
  ShardRun& run = add(world_, "a");
  prepare(run);
  settle(world_, 1);
  EXPECT_TRUE(launched.empty());
  held_back = -1;
  settle(other, 2);  // the round that was waited for has ended
  EXPECT_EQ(launched, std::vector<std::string>{"a"});
  launches.end(run, *world_.set);
}

TEST_F(GpuLaunchesTest, TheCancelledAreToldSo) {
  ShardRun& waiting = add(world_, "waiting");
  ShardRun& kept = add(other, "kept");
  prepare(waiting);
  launches.cancel(*world_.set, Status::aborted("the end"));
  EXPECT_EQ(launched, std::vector<std::string>{"cancelled waiting"});
  launches.end(waiting, *world_.set);
  prepare(kept);
  settle(other, 1);
  EXPECT_EQ(launched.back(), "kept");
  launches.end(kept, *other.set);
  EXPECT_TRUE(launches.is_idle());
}

}  // namespace
}  // namespace perseus
