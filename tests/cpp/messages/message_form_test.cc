// MessageForm: sizes, and elements that come back.
#include "messages/message_form.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "codec/function_codec.h"

namespace perseus {
namespace {

constexpr int64_t kRun = MessageForm::kRunElements;

TensorDescription floats(int64_t elements) { return {DataType::kFloat32, {elements}}; }

// A codec whose sizes are what the test says.
int sized_codec(const char* name, size_t (*encoded_size)(void*, size_t)) {
  CodecFunctions functions;
  functions.encoded_size = encoded_size;
  functions.encode = [](void*, const float*, size_t, void*) {};
  functions.decode = [](void*, const void*, float*, size_t) {};
  return register_codec(FunctionCodec::create(name, functions, false).value()).value();
}

TEST(MessageForm, HasSizesThatFitTogether) {
  for (const int codec : {kCodecNone, kCodecFp16, kCodecBf16}) {
    for (const int64_t elements : {int64_t{0}, int64_t{1}, kRun - 1, kRun, kRun + 1, 3 * kRun}) {
      const MessageForm form = MessageForm::of(floats(elements), codec).value();
      uint64_t first = 0, offset = 0;
      for (uint32_t index = 0; index < form.runs(); ++index) {
        const MessageForm::Run run = form.run(index);
        EXPECT_EQ(run.first, first);
        EXPECT_EQ(run.offset, offset);
        EXPECT_GT(run.elements, 0u);
        first += run.elements;
        offset += run.bytes;
      }
      EXPECT_EQ(first, static_cast<uint64_t>(elements));
      EXPECT_EQ(offset, form.bytes());
      EXPECT_EQ(form.is_encoded(), codec != kCodecNone && elements > 0);
    }
  }
  EXPECT_EQ(MessageForm::of(floats(5), kCodecBf16).value().bytes(), 10u);
}

TEST(MessageForm, GivesBackWhatItEncodes) {
  std::vector<float> values(2 * kRun + 17), back(values.size());
  std::iota(values.begin(), values.end(), -1000.0f);
  for (const int codec : {kCodecNone, kCodecFp16, kCodecBf16}) {
    const MessageForm form =
        MessageForm::of(floats(static_cast<int64_t>(values.size())), codec).value();
    std::vector<std::byte> wire(form.bytes());
    form.encode_all(reinterpret_cast<const std::byte*>(values.data()), wire.data());
    form.decode_all(wire.data(), reinterpret_cast<std::byte*>(back.data()));
    const double unit = codec == kCodecNone ? 0 : codec == kCodecFp16 ? 0x1p-11 : 0x1p-8;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(double{back[i]} - values[i]), unit * std::abs(values[i])) << i;
    }
  }
}

TEST(MessageForm, IsOneThatThisRankHas) {
  const auto unknown = MessageForm::of(floats(3), 12345);
  EXPECT_EQ(unknown.status().code(), StatusCode::kMismatch);
  EXPECT_NE(unknown.status().message().find("register the same codecs"), std::string::npos);
  const auto wrong = MessageForm::of({DataType::kFloat64, {3}}, kCodecFp16);
  EXPECT_EQ(wrong.status().message(),
            "codec is 'fp16'; it must be 'none' for float64[3], since codecs encode float32");
}

TEST(MessageForm, HasAPossibleSize) {
  const int nothing = sized_codec("nothing", [](void*, size_t) { return size_t{0}; });
  EXPECT_EQ(MessageForm::of(floats(1), nothing).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(MessageForm::of(floats(0), nothing).is_ok());
  const int huge = sized_codec("huge", [](void*, size_t) { return SIZE_MAX / 2; });
  EXPECT_FALSE(MessageForm::of(floats(4 * kRun), huge).is_ok());
  EXPECT_FALSE(MessageForm::of(floats(kRun + 1), huge).is_ok());
}

}  // namespace
}  // namespace perseus
