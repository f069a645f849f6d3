#include "rollcall/roll_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "sanitizers.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;
using test::kIsSanitized;

constexpr std::chrono::nanoseconds kLong = 10s;

std::vector<SharedBoard> zeroed_boards(int ranks) {
  std::vector<SharedBoard> boards;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto memory = std::make_shared<BoardMemory>();
    boards.push_back({memory, reinterpret_cast<std::byte*>(memory.get())});
  }
  return boards;
}

// Ranks that are threads of this program.
class Ranks {
 public:
  explicit Ranks(int count, std::chrono::nanoseconds patience = kLong, uint64_t world = 7)
      : boards_(zeroed_boards(count)) {
    begin_world(world, patience);
  }
  // The same ranks with the same memory.
  void begin_world(uint64_t world, std::chrono::nanoseconds patience = kLong) {
    rolls_.clear();
    for (int rank = 0; rank < size(); ++rank) rolls_.push_back(one(world, rank, patience));
  }
  std::unique_ptr<RollCall> one(uint64_t world, int rank, std::chrono::nanoseconds patience) {
    return std::make_unique<RollCall>(world, rank, boards_, closed,
                                      RollCall::Manner{patience, /*yields=*/size() > 2});
  }

  int size() const { return static_cast<int>(boards_.size()); }
  RollCall& operator[](int rank) { return *rolls_[rank]; }

  void run(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  std::atomic<bool> closed{false};

 private:
  std::vector<SharedBoard> boards_;
  std::vector<std::unique_ptr<RollCall>> rolls_;
};

CallForm form_of(uint64_t name, uint32_t use, size_t bytes) {
  return {.name = name, .use = use, .bytes = static_cast<uint32_t>(bytes), .shape = {1}};
}

// What a rank brings to a call.
std::vector<std::byte> bytes_of(int rank, uint32_t use, size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(rank + 3 * use + 7 * i);
  return values;
}

bool has_inputs(const RollCall& roll, int ranks, uint32_t use, size_t bytes) {
  std::vector<std::byte> wanted;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto values = bytes_of(rank, use, bytes);
    wanted.insert(wanted.end(), values.begin(), values.end());
  }
  return std::ranges::equal(roll.inputs(), wanted);
}

class RollCallTest : public testing::TestWithParam<int> {};

TEST_P(RollCallTest, AllGetWhatAllHaveBrought) {
  Ranks ranks(GetParam());
  ranks.run([&](int rank) {
    uint32_t use = 0;
    for (const size_t bytes : {0, 1, 16, 17, 64, 1000, 4096, 4, 4, 4}) {
      const auto input = bytes_of(rank, ++use, bytes);
      ASSERT_TRUE(ranks[rank].attend(form_of(1, use, bytes), input, use * 10 + rank));
      ASSERT_TRUE(has_inputs(ranks[rank], ranks.size(), use, bytes)) << bytes;
      ASSERT_EQ(ranks[rank].announced(), use * 10 + ranks.size() - 1);
    }
  });
}

TEST_P(RollCallTest, CallsThatDifferAreTakenElsewhereByAll) {
  const std::vector<std::function<void(CallForm&)>> changes = {
      [](CallForm& form) { form.name = 2; },       [](CallForm& form) { form.use += 100; },
      [](CallForm& form) { form.kind = 1; },       [](CallForm& form) { form.dtype = 1; },
      [](CallForm& form) { form.reduce_op = 1; },  [](CallForm& form) { form.root = 1; },
      [](CallForm& form) { form.bytes = 8; },      [](CallForm& form) { form.shape = {1, 1}; },
      [](CallForm& form) { form.dimensions = 2; },
  };
  Ranks ranks(GetParam());
  ranks.run([&](int rank) {
    uint32_t use = 0;
    for (const auto& change : changes) {
      CallForm form = form_of(1, ++use, 4);
      if (rank == ranks.size() - 1) change(form);
      ASSERT_FALSE(ranks[rank].attend(form, bytes_of(rank, 0, form.bytes), 0));
      ++use;
      ASSERT_TRUE(ranks[rank].attend(form_of(1, use, 4), bytes_of(rank, use, 4), 0));
      ASSERT_TRUE(has_inputs(ranks[rank], ranks.size(), use, 4));
    }
  });
}

TEST_P(RollCallTest, NobodyWaitsForARankThatIsElsewhere) {
  Ranks ranks(GetParam());
  std::atomic<int> done_elsewhere{0};
  ranks.run([&](int rank) {
    const CallForm first = form_of(1, 1, 4);
    if (rank == 0) {
      ranks[rank].take_elsewhere(first);
    } else {
      ASSERT_FALSE(ranks[rank].attend(first, bytes_of(rank, 1, 4), 0));
    }
    ++done_elsewhere;
    while (done_elsewhere < ranks.size()) std::this_thread::yield();
    ASSERT_TRUE(ranks[rank].attend(form_of(1, 2, 4), bytes_of(rank, 2, 4), 0));
  });
}

// Some ranks come so late that others have left, at every point of a call. It is held for all or
// for none, and the inputs are those of this call.
TEST_P(RollCallTest, IsHeldForAllOrForNone) {
  constexpr int kCalls = kIsSanitized ? 3000 : 30000;
  Ranks ranks(GetParam(), 2us);
  std::vector<std::vector<char>> held(ranks.size(), std::vector<char>(kCalls));
  std::vector<std::atomic<int>> arrived(kCalls);
  ranks.run([&](int rank) {
    std::mt19937 random(rank);
    for (int call = 0; call < kCalls; ++call) {
      // All begin a call together, as those do that the engine has brought together.
      arrived[call].fetch_add(1);
      while (arrived[call].load() < ranks.size()) std::this_thread::yield();
      for (unsigned turns = random() % 200; turns > 0; --turns) arrived[call].load();
      const size_t bytes = random() % 2 == 0 ? 8 : 8 + 8 * (call % 3);
      const CallForm form = form_of(1, call, bytes);
      if (random() % 16 == 0) {
        ranks[rank].take_elsewhere(form);
        continue;
      }
      held[rank][call] = ranks[rank].attend(form, bytes_of(rank, call, bytes), 0);
      if (held[rank][call]) {
        ASSERT_TRUE(has_inputs(ranks[rank], ranks.size(), call, bytes)) << call;
      }
    }
  });
  int held_calls = 0;
  for (int call = 0; call < kCalls; ++call) {
    for (const auto& of_rank : held) ASSERT_EQ(of_rank[call], held[0][call]) << call;
    held_calls += held[0][call];
  }
  EXPECT_LT(held_calls, kCalls);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RollCallTest, testing::Values(2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(RollCallPatienceTest, IsLostWhenNobodyComes) {
  Ranks ranks(2, 10us);
  RollCall& alone = ranks[0];
  uint32_t use = 0;
  for (const int left_out : {1, 2, 4, 8, 16, 32, 64, 128, 256, 256}) {
    ASSERT_TRUE(alone.expects_others());
    ++use;
    ASSERT_FALSE(alone.attend(form_of(1, use, 4), bytes_of(0, use, 4), 0));
    for (int call = 0; call < left_out; ++call) ASSERT_FALSE(alone.expects_others()) << left_out;
  }
}

TEST(RollCallPatienceTest, ComesBackWithACallThatIsHeld) {
  Ranks ranks(2, kIsSanitized ? 1s : 100ms);
  for (uint32_t use = 1; use <= 3; ++use) {
    ASSERT_FALSE(ranks[0].attend(form_of(1, use, 4), bytes_of(0, use, 4), 0));
  }
  ranks.run([&](int rank) {
    ASSERT_TRUE(ranks[rank].attend(form_of(1, 10, 4), bytes_of(rank, 10, 4), 0));
  });
  while (!ranks[0].expects_others()) {
  }
  ASSERT_FALSE(ranks[0].attend(form_of(1, 11, 4), bytes_of(0, 11, 4), 0));
  EXPECT_FALSE(ranks[0].expects_others());
  EXPECT_TRUE(ranks[0].expects_others());
}

TEST(RollCallWorldTest, EndsWhenItIsClosed) {
  Ranks ranks(2);
  std::thread closes([&] {
    std::this_thread::sleep_for(10ms);
    ranks.closed = true;
  });
  EXPECT_FALSE(ranks[1].attend(form_of(1, 1, 4), bytes_of(1, 1, 4), 0));
  closes.join();
}

// A rank that was left behind must not count in the world that has begun since.
TEST(RollCallWorldTest, AnEarlierWorldChangesNothing) {
  Ranks ranks(2, 10us);
  const auto left_behind = ranks.one(7, 1, 10us);
  ranks.begin_world(8, kLong);
  EXPECT_FALSE(left_behind->attend(form_of(1, 1, 4), bytes_of(1, 1, 4), 0));
  ranks.run([&](int rank) {
    for (uint32_t use = 2; use < 6; ++use) {
      ASSERT_TRUE(ranks[rank].attend(form_of(1, use, 4), bytes_of(rank, use, 4), 0));
      ASSERT_TRUE(has_inputs(ranks[rank], 2, use, 4));
    }
  });
  EXPECT_FALSE(left_behind->attend(form_of(1, 6, 4), bytes_of(1, 6, 4), 0));
}

// It waits in the old world until the new one begins.
TEST(RollCallWorldTest, AWaitEndsWithTheWorld) {
  Ranks ranks(2);
  const auto waits = ranks.one(7, 1, kLong);
  std::thread next([&] {
    std::this_thread::sleep_for(10ms);
    ranks.begin_world(8);
  });
  EXPECT_FALSE(waits->attend(form_of(1, 1, 4), bytes_of(1, 1, 4), 0));
  next.join();
}

}  // namespace
}  // namespace perseus
