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

using Ranks = std::vector<uint32_t>;

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

// The survivors of three ranks; two are enough.
class Survivors : public testing::Test {
 protected:
  static Hello hello(uint32_t rank) {
    Hello hello;
    hello.rank = rank;
    hello.size = 3;
    hello.survivors = true;
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

  LaunchedRanks launched_{2, {"a", "b", "b"}, {}};
  std::array<FakeMember, 3> members_;
  MetWorlds met_{"secret"};
  World world_{hello(0), launched_, met_};
};

TEST_F(Survivors, MeetOnceTheOthersHaveEnded) {
  come(0);
  come(2);
  EXPECT_FALSE(members_[0].told());
  launched_.ended.emplace(1, "exited with code 1");
  world_.note_ended();
  for (const uint32_t rank : {0, 2}) expect_gathered(rank, {"of 0", "", "of 2"});
}

TEST_F(Survivors, GoOnWithoutWhoDoesNotComeInTime) {
  come(0);
  come(2);
  EXPECT_EQ(world_.time_out(5), Ranks{1});
  for (const uint32_t rank : {0, 2}) expect_gathered(rank, {"of 0", "", "of 2"});
  EXPECT_NE(join(1).message().find("without rank 1 on b"), std::string::npos);
  const std::vector<std::string> gathered = {"of 0", "of 2"};
  const std::string name = WorldKey("secret", gathered).name();
  EXPECT_FALSE(met_.has(name, {0, 2})) << "they only know by now who is there";
  for (const uint32_t rank : {0, 2}) contribute(rank, 1);
  for (const uint32_t rank : {0, 2}) expect_gathered(rank, gathered);
  EXPECT_TRUE(met_.has(name, {0, 2}));
  EXPECT_FALSE(met_.has(name, {0, 1}));
  EXPECT_FALSE(met_.has(WorldKey("another", gathered).name(), {0, 2}));
}

TEST_F(Survivors, GoOnWithoutWhoComesAndSaysNothing) {
  come(0);
  EXPECT_TRUE(join(1).is_ok());
  come(2);
  EXPECT_EQ(world_.time_out(5), Ranks{1});
  for (const uint32_t rank : {0, 2}) expect_gathered(rank, {"of 0", "", "of 2"});
  contribute(1, 0);
  expect_failure(1, "without rank 1 on b, which did not come in time");
  for (const uint32_t rank : {0, 2}) contribute(rank, 1);
  for (const uint32_t rank : {0, 2}) expect_gathered(rank, {"of 0", "of 2"});
}

TEST_F(Survivors, FailWhereTooFewCome) {
  come(2);
  EXPECT_EQ(world_.time_out(5), Ranks{});
  expect_failure(2,
                 "the 3 ranks did not all meet within 5.0 s: ranks 0 and 1 on a and b never came");
}

}  // namespace
}  // namespace perseus::rendezvous
