#include "codec/residuals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codec/codec.h"

namespace perseus {
namespace {

using Floats = std::vector<float>;

Floats copy(std::span<const float> values) { return Floats(values.begin(), values.end()); }

// An operation that reads the residual and leaves another one. Returns what it has read.
Floats operate(Residuals& residuals, std::string_view name, const Floats& next, bool is_ok = true) {
  const Residuals::Parts parts = residuals.of({name, next.size()});
  const Floats last = copy(parts.last);
  std::ranges::copy(next, parts.next.begin());
  residuals.operation_ended(name, is_ok);
  return last;
}

// Reads the residual in an operation that fails, so that it stays as it is.
Floats residual_of(Residuals& residuals, std::string_view name, size_t elements) {
  return operate(residuals, name, Floats(elements, 99.0f), false);
}

TEST(ResidualsTest, ANewTensorHasLostNothing) {
  Residuals residuals;
  EXPECT_EQ(residual_of(residuals, "w", 3), (Floats{0, 0, 0}));
}

TEST(ResidualsTest, AreKeptByTensor) {
  Residuals residuals;
  operate(residuals, "w", {1.5f, 0});
  operate(residuals, "b", {-4.0f, 0});
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1.5f, 0}));
  EXPECT_EQ(residual_of(residuals, "b", 2), (Floats{-4.0f, 0}));
}

TEST(ResidualsTest, AChangedSizeStartsFromNothing) {
  Residuals residuals;
  operate(residuals, "w", {1.5f, 2.5f});
  EXPECT_EQ(residual_of(residuals, "w", 3), (Floats{0, 0, 0}));
}

TEST(ResidualsTest, AShardReadsWhatWasThereBeforeTheOperationWhateverOthersHaveWritten) {
  Residuals residuals;
  operate(residuals, "w", {1, 2});
  for (int commits = 0; commits < 2; ++commits) {
    residuals.of({"w", 2}).next[0] = 7;
    EXPECT_EQ(copy(residuals.of({"w", 2}).last), (Floats{1, 2}));
    residuals.operation_ended("w", false);
    residuals.commit();
  }
}

TEST(ResidualsTest, AFailedOperationLeavesThemAsTheyWereAlsoIfSomeShardsAreDone) {
  Residuals residuals;
  operate(residuals, "w", {1, 2});
  residuals.of({"w", 2}).next[0] = 7;  // one of two shards
  residuals.operation_ended("w", false);
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2}));
  residuals.commit();
  operate(residuals, "w", {3, 4});
  residuals.of({"w", 2}).next[1] = 7;
  residuals.operation_ended("w", false);
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{3, 4}));
}

TEST(ResidualsTest, AnOperationThatTheWorldDidNotSeeTheEndOfHasFailed) {
  Residuals residuals;
  operate(residuals, "w", {1, 2});
  residuals.of({"w", 2}).next[0] = 7;
  residuals.world_ended();
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2}));
}

TEST(ResidualsTest, RestoreGoesBackToTheCommitOverAnyNumberOfOperations) {
  for (int operations = 0; operations < 4; ++operations) {
    Residuals residuals;
    operate(residuals, "w", {1, 2});
    residuals.commit();
    for (int i = 0; i < operations; ++i) operate(residuals, "w", {10.0f + i, 20.0f + i});
    operate(residuals, "new", {5});
    if (operations == 0) EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2}));
    residuals.restore();
    EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2})) << operations;
    EXPECT_EQ(residual_of(residuals, "new", 1), Floats{0});
    operate(residuals, "w", {3, 4});
    residuals.commit();
    residuals.restore();
    EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{3, 4}));
  }
}

TEST(ResidualsTest, RestoreWithoutACommitChangesNothing) {
  Residuals residuals;
  operate(residuals, "w", {1, 2});
  residuals.restore();
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2}));
}

TEST(ResidualsTest, AnOperationThatIsUnderWayAtARestoreGoesBackWhenItEnds) {
  for (const bool is_ok : {false, true}) {
    Residuals residuals;
    operate(residuals, "w", {1, 2});
    residuals.commit();
    operate(residuals, "w", {3, 4});
    const Residuals::Parts parts = residuals.of({"w", 2});
    residuals.restore();
    EXPECT_EQ(copy(parts.last), (Floats{3, 4}));
    parts.next[0] = 7;
    residuals.operation_ended("w", is_ok);
    EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{1, 2}));
  }
}

TEST(ResidualsTest, ForgetLeavesNothing) {
  Residuals residuals;
  operate(residuals, "w", {1, 2});
  residuals.commit();
  residuals.forget();
  EXPECT_EQ(residual_of(residuals, "w", 2), (Floats{0, 0}));
}

TEST(ResidualsTest, OutliveAWorldUnlessTheNameMeansNothingInAnother) {
  Residuals residuals;
  operate(residuals, "w", {1});
  residuals.of({"of a set", 1, /*outlives_world=*/false}).next[0] = 2;
  residuals.operation_ended("of a set", true);
  residuals.world_ended();
  EXPECT_EQ(residuals.size(), 1u);
  EXPECT_EQ(residual_of(residuals, "w", 1), Floats{1});
}

TEST(ResidualsTest, NamesThatTwoWorldsHaveNotUsedAreDropped) {
  Residuals residuals;
  operate(residuals, "old", {1});
  for (int world = 0; world < 5; ++world) residuals.world_ended();  // some that used none
  for (int world = 0; world < 2; ++world) {
    EXPECT_EQ(residuals.size(), 1u + (world > 0));
    operate(residuals, "new", {1});
    residuals.world_ended();
  }
  EXPECT_EQ(residuals.size(), 1u);
  EXPECT_EQ(residual_of(residuals, "old", 1), Floats{0});
}

TEST(ResidualsTest, WhatIsKeptIsWhatTheCodecLost) {
  const Floats gradient = {1.0f, 2.5f, -3.0f}, decoded = {1.0f, 2.0f, -4.0f};
  Floats residual(3);
  keep_residual(residual.data(), gradient.data(), decoded.data(), 3);
  EXPECT_EQ(residual, (Floats{0, 0.5f, 1.0f}));
  Floats next = {10.0f, 10.0f, 10.0f};
  add_residual(next.data(), residual.data(), 3);
  EXPECT_EQ(next, (Floats{10.0f, 10.5f, 11.0f}));
}

TEST(ResidualsTest, TheDecodedValuesMayLieInTheResidual) {
  const Floats gradient = {2.5f, -3.0f};
  Floats residual = {2.0f, -4.0f};
  keep_residual(residual.data(), gradient.data(), residual.data(), 2);
  EXPECT_EQ(residual, (Floats{0.5f, 1.0f}));
}

TEST(ResidualsTest, AnOverflowIsNotKept) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats gradient = {infinity, std::nanf(""), 1e38f, 1.0f};
  const Floats decoded = {infinity, std::nanf(""), -3e38f, 0.5f};
  Floats residual(4, 7.0f);
  keep_residual(residual.data(), gradient.data(), decoded.data(), 4);
  EXPECT_EQ(residual, (Floats{0, 0, 0, 0.5f}));
}

// The sum of what the codec let through stays within one rounding of the true sum, where without
// feedback the errors of the steps would add up.
TEST(ResidualsTest, OverManyStepsNothingIsLost) {
  const Codec& bf16 = *codec(kCodecBf16);
  constexpr int kSteps = 1000;
  const Floats step = {1.001f, -0.3003f, 7.77e-3f};
  Residuals residuals;
  std::vector<double> received(step.size(), 0.0);
  for (int i = 0; i < kSteps; ++i) {
    const Residuals::Parts residual = residuals.of({"w", step.size()});
    Floats gradient = step;
    add_residual(gradient.data(), residual.last.data(), gradient.size());
    std::vector<std::byte> encoded(bf16.encoded_size(gradient.size()));
    bf16.encode(gradient.data(), gradient.size(), encoded.data());
    Floats decoded(gradient.size());
    bf16.decode(encoded.data(), decoded.data(), decoded.size());
    keep_residual(residual.next.data(), gradient.data(), decoded.data(), decoded.size());
    residuals.operation_ended("w", true);
    for (size_t k = 0; k < step.size(); ++k) received[k] += decoded[k];
  }
  for (size_t k = 0; k < step.size(); ++k) {
    const double exact = static_cast<double>(step[k]) * kSteps;
    EXPECT_NEAR(received[k], exact, std::fabs(step[k]) * (std::exp2(-8) + kSteps * std::exp2(-24)));
  }
}

}  // namespace
}  // namespace perseus
