#include "codec/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "codec/function_codec.h"

namespace perseus {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// `source` as the other side decodes it.
std::vector<float> through(const Codec& codec, const std::vector<float>& source) {
  const size_t bytes = codec.encoded_size(source.size());
  std::vector<std::byte> encoded(bytes + 1, std::byte{0xA5});
  codec.encode(source.data(), source.size(), encoded.data());
  EXPECT_EQ(encoded[bytes], std::byte{0xA5}) << "encode wrote beyond its size";
  std::vector<float> decoded(source.size(), -1.0f);
  codec.decode(encoded.data(), decoded.data(), decoded.size());
  return decoded;
}

// Elements of all sizes from `scale` down, of both signs.
std::vector<float> gradient(size_t elements, double scale, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(-20.0, 0.0), sign(-1.0, 1.0);
  std::vector<float> values(elements);
  for (float& value : values) {
    value = static_cast<float>(std::copysign(scale * std::exp2(exponent(random)), sign(random)));
  }
  return values;
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (float value : values) most = std::max(most, std::fabs(static_cast<double>(value)));
  return most;
}

class EveryCodecTest : public testing::TestWithParam<int> {};

TEST_P(EveryCodecTest, RunsOfAnyLengthComeBackNearly) {
  const Codec& codec = *perseus::codec(GetParam());
  for (size_t elements : {0u, 1u, 2u, 15u, 16u, 17u, 31u, 33u, 1000u, 4099u}) {
    const std::vector<float> source = gradient(elements, 3.0);
    const std::vector<float> decoded = through(codec, source);
    for (size_t i = 0; i < elements; ++i) {
      ASSERT_NEAR(decoded[i], source[i], std::exp2(-8) * std::fabs(source[i]) + 1e-11)
          << "element " << i << " of " << elements;
    }
  }
}

TEST_P(EveryCodecTest, NaNAndInfinityStayVisibleAndSpoilNothingElse) {
  std::vector<float> source = gradient(100, 1e-6);
  source[3] = std::nanf("");
  source[50] = kInfinity;
  source[99] = -kInfinity;
  const std::vector<float> decoded = through(*codec(GetParam()), source);
  for (size_t i = 0; i < source.size(); ++i) {
    if (i == 3) {
      EXPECT_TRUE(std::isnan(decoded[i]));
    } else if (i == 50 || i == 99) {
      EXPECT_EQ(decoded[i], source[i]);
    } else {
      EXPECT_NEAR(decoded[i], source[i], std::exp2(-8) * std::fabs(source[i])) << i;
    }
  }
}

TEST_P(EveryCodecTest, ZerosKeepTheirSign) {
  const std::vector<float> decoded = through(*codec(GetParam()), {0.0f, -0.0f});
  EXPECT_EQ(decoded, (std::vector<float>{0.0f, 0.0f}));
  EXPECT_FALSE(std::signbit(decoded[0]));
  EXPECT_TRUE(std::signbit(decoded[1]));
}

TEST_P(EveryCodecTest, ReadsAndWritesAtAnyPlaceInAMessage) {
  const Codec& codec = *perseus::codec(GetParam());
  const std::vector<float> source = gradient(37, 1.0);
  std::vector<std::byte> message(codec.encoded_size(37) + 3);
  for (size_t offset = 0; offset < 3; ++offset) {
    std::vector<float> decoded(37);
    codec.encode(source.data(), 37, message.data() + offset);
    codec.decode(message.data() + offset, decoded.data(), 37);
    EXPECT_EQ(decoded, through(codec, source));
  }
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, EveryCodecTest, testing::Values(kCodecFp16, kCodecBf16),
                         [](const auto& info) { return std::string(codec(info.param)->name()); });

TEST(Fp16CodecTest, ErrorIsBoundedAtEveryMagnitudeOfFloat32) {
  const Codec& fp16 = *codec(kCodecFp16);
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const std::vector<float> source = gradient(200, std::exp2(exponent), 7);
    const std::vector<float> decoded = through(fp16, source);
    // The last term is half of float32's smallest step, for results too small to be normal.
    const double floor = std::exp2(-39) * largest(source) + std::exp2(-150);
    for (size_t i = 0; i < source.size(); ++i) {
      const double error = std::fabs(static_cast<double>(decoded[i]) - source[i]);
      ASSERT_LE(error, std::exp2(-11) * std::fabs(static_cast<double>(source[i])) + floor)
          << source[i] << " among magnitudes up to 2^" << exponent;
    }
  }
}

TEST(Fp16CodecTest, LargeGradientsDoNotOverflowAndTinyOnesDoNotVanish) {
  const Codec& fp16 = *codec(kCodecFp16);
  EXPECT_EQ(through(fp16, {1e6f, 65536.0f})[1], 65536.0f);
  EXPECT_EQ(through(fp16, {0x1p-100f, -0x1.8p-101f}),
            (std::vector<float>{0x1p-100f, -0x1.8p-101f}));
  EXPECT_EQ(through(fp16, {0x1p-149f}), std::vector<float>{0x1p-149f});
  EXPECT_EQ(through(fp16, {0x1p127f, 1.0f})[0], 0x1p127f);
}

TEST(Fp16CodecTest, NumbersOfElevenBitsComeBackExactly) {
  std::vector<float> source;
  for (int i = 0; i <= 2048; ++i) source.push_back(static_cast<float>(i) * 0x1p-11f);
  EXPECT_EQ(through(*codec(kCodecFp16), source), source);
}

TEST(Fp16CodecTest, ARunTakesFourBytesAndTwoAnElement) {
  EXPECT_EQ(codec(kCodecFp16)->encoded_size(0), 4u);
  EXPECT_EQ(codec(kCodecFp16)->encoded_size(10), 24u);
}

TEST(Bf16CodecTest, ARunTakesTwoBytesAnElement) {
  EXPECT_EQ(codec(kCodecBf16)->encoded_size(10), 20u);
}

TEST(Bf16CodecTest, RoundsToNearestEven) {
  EXPECT_EQ(through(*codec(kCodecBf16), {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1.1p-8f}),
            (std::vector<float>{1.0f, 1.0f + 0x4p-8f, 1.0f + 0x2p-8f}));
}

// Sends one bit an element, times 0.5; `user` counts the calls.
CodecFunctions sign_functions(int* calls) {
  CodecFunctions functions;
  functions.encoded_size = [](void*, size_t elements) { return (elements + 7) / 8; };
  functions.encode = [](void* user, const float* elements, size_t count, void* encoded) {
    ++*static_cast<int*>(user);
    std::memset(encoded, 0, (count + 7) / 8);
    for (size_t i = 0; i < count; ++i) {
      if (elements[i] < 0) static_cast<uint8_t*>(encoded)[i / 8] |= uint8_t(1u << (i % 8));
    }
  };
  functions.decode = [](void* user, const void* encoded, float* elements, size_t count) {
    ++*static_cast<int*>(user);
    for (size_t i = 0; i < count; ++i) {
      const bool negative = static_cast<const uint8_t*>(encoded)[i / 8] >> (i % 8) & 1;
      elements[i] = negative ? -0.5f : 0.5f;
    }
  };
  functions.user = calls;
  return functions;
}

TEST(FunctionCodecTest, CallsTheFunctionsWithTheirUser) {
  int calls = 0;
  auto created = FunctionCodec::create("sign", sign_functions(&calls), true);
  ASSERT_TRUE(created.is_ok());
  const Codec& sign = *created.value();
  EXPECT_EQ(sign.name(), "sign");
  EXPECT_TRUE(sign.has_error_feedback());
  EXPECT_EQ(sign.encoded_size(9), 2u);
  EXPECT_EQ(through(sign, {3.0f, -0.1f, 2.0f}), (std::vector<float>{0.5f, -0.5f, 0.5f}));
  EXPECT_EQ(calls, 2);
}

TEST(FunctionCodecTest, AMissingNameOrFunctionIsNamed) {
  int calls = 0;
  EXPECT_EQ(FunctionCodec::create("", sign_functions(&calls), false).status().message(),
            "a codec needs a name");
  CodecFunctions functions = sign_functions(&calls);
  functions.decode = nullptr;
  auto codec = FunctionCodec::create("sign", functions, false);
  EXPECT_EQ(codec.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(codec.status().message(), "codec 'sign' has no function decode");
}

TEST(CodecRegistryTest, BuiltInCodecsHaveTheirIds) {
  EXPECT_EQ(find_codec("none").value(), kCodecNone);
  EXPECT_EQ(find_codec("fp16").value(), kCodecFp16);
  EXPECT_EQ(find_codec("bf16").value(), kCodecBf16);
  EXPECT_EQ(codec(kCodecNone), nullptr);
  EXPECT_EQ(codec(kCodecFp16)->name(), "fp16");
  EXPECT_FALSE(codec(kCodecFp16)->has_error_feedback());
}

TEST(CodecRegistryTest, IdsThatStandForNothingAreKnownAsSuch) {
  EXPECT_TRUE(codec_exists(kCodecFromSettings));
  EXPECT_TRUE(codec_exists(kCodecNone));
  EXPECT_TRUE(codec_exists(kCodecBf16));
  for (int id : {-1, 1000}) {
    EXPECT_FALSE(codec_exists(id));
    EXPECT_EQ(codec(id), nullptr);
  }
}

TEST(CodecRegistryTest, AnUnknownNameIsAnsweredWithThoseKnown) {
  Result<int> found = find_codec("fp8");
  EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(found.status().message().find("no codec is named 'fp8'; there are: none, fp16, bf16"),
            0u)
      << found.status().message();
}

std::unique_ptr<Codec> named(const std::string& name) {
  static int calls = 0;
  return FunctionCodec::create(name, sign_functions(&calls), false).value();
}

TEST(CodecRegistryTest, UsersCodecsGetIdsByTheirNames) {
  const int first = register_codec(named("first")).value();
  const int second = register_codec(named("second")).value();
  EXPECT_GT(first, kCodecBf16);
  EXPECT_GT(second, kCodecBf16);
  EXPECT_NE(first, second);
  EXPECT_EQ(find_codec("second").value(), second);
  EXPECT_EQ(codec(second)->name(), "second");
  EXPECT_TRUE(codec_exists(first));
  EXPECT_FALSE(codec_exists(first ^ 1));
  EXPECT_EQ(codec(first ^ 1), nullptr);
}

TEST(CodecRegistryTest, TwoNamesOfOneIdAreRefused) {
  ASSERT_TRUE(register_codec(named("codec96566")).is_ok());
  const Result<int> other = register_codec(named("codec148039"));
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.status().message().find("'codec148039' and 'codec96566'"), std::string::npos);
}

TEST(CodecRegistryTest, ANameIsTakenOnce) {
  ASSERT_TRUE(register_codec(named("mine")).is_ok());
  for (const char* name : {"mine", "none", "fp16"}) {
    Result<int> again = register_codec(named(name));
    EXPECT_EQ(again.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(again.status().message(),
              "a codec named '" + std::string(name) + "' is registered already");
  }
}

TEST(CodecRegistryTest, ThreadsMayRegisterAndLookUpTogether) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        const std::string name = "thread" + std::to_string(t) + "." + std::to_string(i);
        Result<int> id = register_codec(named(name));
        ASSERT_TRUE(id.is_ok());
        EXPECT_EQ(codec(id.value())->name(), name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace perseus
