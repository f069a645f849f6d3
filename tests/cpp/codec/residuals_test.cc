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

TEST(ResidualsTest, ANewTensorHasLostNothing) {
  Residuals residuals;
  EXPECT_EQ(copy(residuals.of("w", 3)), (Floats{0, 0, 0}));
}

TEST(ResidualsTest, AreKeptByTensor) {
  Residuals residuals;
  residuals.of("w", 2)[0] = 1.5f;
  residuals.of("b", 2)[0] = -4.0f;
  EXPECT_EQ(copy(residuals.of("w", 2)), (Floats{1.5f, 0}));
  EXPECT_EQ(copy(residuals.of("b", 2)), (Floats{-4.0f, 0}));
}

TEST(ResidualsTest, AChangedSizeStartsFromNothing) {
  Residuals residuals;
  residuals.of("w", 2)[0] = 1.5f;
  EXPECT_EQ(copy(residuals.of("w", 3)), (Floats{0, 0, 0}));
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
    std::span<float> residual = residuals.of("w", step.size());
    Floats gradient = step;
    add_residual(gradient.data(), residual.data(), gradient.size());
    std::vector<std::byte> encoded(bf16.encoded_size(gradient.size()));
    bf16.encode(gradient.data(), gradient.size(), encoded.data());
    Floats decoded(gradient.size());
    bf16.decode(encoded.data(), decoded.data(), decoded.size());
    keep_residual(residual.data(), gradient.data(), decoded.data(), decoded.size());
    for (size_t k = 0; k < step.size(); ++k) received[k] += decoded[k];
  }
  for (size_t k = 0; k < step.size(); ++k) {
    const double exact = static_cast<double>(step[k]) * kSteps;
    EXPECT_NEAR(received[k], exact, std::fabs(step[k]) * (std::exp2(-8) + kSteps * std::exp2(-24)));
  }
}

}  // namespace
}  // namespace perseus
