#include "bootstrap/rendezvous_world.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/world_key.h"
#include "bootstrap/met_worlds.h"

namespace perseus::rendezvous {
namespace {

class FakeMember final : public World::Member {
 public:
  void tell(const std::string& payload) override {
    EXPECT_FALSE(told_);
    EXPECT_TRUE(decode(payload, told_.emplace()));
  }
  std::string where() const override { return "there"; }
  void replaced() override { FAIL(); }

  // Returns what the member was told since the last call.
  std::optional<Decoded> told() { return std::exchange(told_, std::nullopt); }

 private:
  std::optional<Decoded> told_;
};

class WorldOfThree : public testing::Test {
 protected:
  static Hello hello(uint32_t rank) {
    Hello hello;
    hello.rank = rank;
    hello.size = 3;
    return hello;
  }
  Status join(uint32_t rank) { return world_.join(hello(rank), &members_[rank]); }
  void contribute(uint32_t rank, uint32_t round) {
    world_.contribute(rank, {round, 1000, "of " + std::to_string(rank)});
  }
  void come(uint32_t rank) {
    EXPECT_TRUE(join(rank).is_ok());
    contribute(rank, 0);
  }
  void expect_gathered(uint32_t rank, const std::vector<std::string>& expected) {
    const auto told = members_[rank].told();
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, Answer::kGathered);
    EXPECT_EQ(told->gathered, expected);
  }
  void expect_failure(uint32_t rank, const std::string& text) {
    const auto told = members_[rank].told();
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, Answer::kFailed);
    EXPECT_NE(told->error.message().find(text), std::string::npos) << told->error.message();
  }

  LaunchedRanks launched_{{"a", "b", "b"}, {}};
  std::array<FakeMember, 3> members_;
  MetWorlds met_{"secret"};
  World world_{hello(0), launched_, met_};
};

TEST_F(WorldOfThree, MeetsOnceAllHaveCome) {
  come(0);
  come(2);
  EXPECT_FALSE(members_[0].told());
  come(1);
  const std::vector<std::string> gathered = {"of 0", "of 1", "of 2"};
  for (const uint32_t rank : {0, 1, 2}) expect_gathered(rank, gathered);
  const std::string name = WorldKey("secret", gathered).name();
  EXPECT_TRUE(met_.has(name, {0, 1, 2}));
  EXPECT_FALSE(met_.has(name, {0, 1}));
  EXPECT_FALSE(met_.has(WorldKey("another", gathered).name(), {0, 1, 2}));
}

TEST_F(WorldOfThree, FailsOnceARankHasEndedThatHasNotCome) {
  come(0);
  come(2);
  launched_.ended.emplace(1, "exited with code 1");
  world_.note_ended();
  for (const uint32_t rank : {0, 2}) {
    expect_failure(rank, "rank 1 on b exited with code 1, and the ranks cannot meet without it");
  }
}

TEST_F(WorldOfThree, FailsWhereOneNeverComesAndOneSaysNothing) {
  come(2);
  EXPECT_TRUE(join(1).is_ok());
  world_.time_out(5);
  expect_failure(2,
                 "the 3 ranks did not all meet within 5.0 s: rank 0 on a never came; rank 1 on b "
                 "came and then fell silent");
}

}  // namespace
}  // namespace perseus::rendezvous
