// Envelope and the other words of messengers: what is written is read, and nothing else is.
#include "messages/envelope.h"

#include <gtest/gtest.h>

#include "state/control.h"

namespace perseus {
namespace {

Envelope envelope() {
  return {.process_set = 3,
          .tag = 7,
          .number = 11,
          .is_whole = true,
          .tensor = {DataType::kFloat16, {2, 5}},
          .refusal = "no"};
}

// Reads it as it arrives: after the kind.
std::optional<Envelope> read(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<ControlKind>(), ControlKind::kEnvelope);
  return Envelope::read(reader);
}

TEST(Envelope, IsReadAsItWasWritten) {
  ByteWriter writer;
  envelope().write(writer);
  const auto found = read(writer.bytes());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->process_set, 3);
  EXPECT_EQ(found->tag, 7);
  EXPECT_EQ(found->number, 11u);
  EXPECT_TRUE(found->is_whole);
  EXPECT_EQ(found->tensor, envelope().tensor);
  EXPECT_EQ(found->bytes(), 20u);
  EXPECT_EQ(found->refusal, "no");
}

TEST(Envelope, IsNotReadFromAPart) {
  ByteWriter writer;
  envelope().write(writer);
  for (size_t size = 1; size < writer.size(); ++size) {
    EXPECT_FALSE(read(writer.bytes().first(size))) << size;
  }
}

TEST(Envelope, HasATagAndAPossibleSize) {
  for (const auto& change : std::initializer_list<void (*)(Envelope&)>{
           [](Envelope& it) { it.tag = -1; },
           [](Envelope& it) { it.tensor.shape = {-1}; },
           [](Envelope& it) { it.tensor.dtype = static_cast<DataType>(kDataTypeCount); },
           [](Envelope& it) { it.tensor.shape = {int64_t{1} << 40, int64_t{1} << 40}; },
           // The elements can be counted, and the bytes cannot.
           [](Envelope& it) { it.tensor.shape = {(int64_t{1} << 62) + 1}; },
       }) {
    Envelope wrong = envelope();
    change(wrong);
    ByteWriter writer;
    wrong.write(writer);
    EXPECT_FALSE(read(writer.bytes()));
  }
}

TEST(Envelope, SaysHowItsElementsAreEncoded) {
  Envelope encoded = envelope();
  encoded.tensor.dtype = DataType::kFloat32;
  encoded.refusal.clear();
  encoded.is_whole = false;
  encoded.in_runs = true;
  encoded.codec = kCodecFp16;
  encoded.encoded_bytes = 24;
  ByteWriter writer;
  encoded.write(writer);
  const auto found = read(writer.bytes());
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->in_runs);
  EXPECT_EQ(found->codec, kCodecFp16);
  EXPECT_EQ(found->bytes(), 24u);
  for (size_t size = 1; size < writer.size(); ++size) {
    EXPECT_FALSE(read(writer.bytes().first(size))) << size;
  }
}

TEST(Clearance, IsReadAsItWasWritten) {
  ByteWriter writer;
  Clearance{.number = 5, .in_runs = true, .refusal = Status::mismatch("it does not fit")}.write(
      writer);
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get<ControlKind>(), ControlKind::kClearance);
  const auto found = Clearance::read(reader);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->number, 5u);
  EXPECT_TRUE(found->in_runs);
  EXPECT_EQ(found->refusal.code(), StatusCode::kMismatch);
  EXPECT_EQ(found->refusal.message(), "it does not fit");
  EXPECT_FALSE(Clearance::read(ByteReader(writer.bytes().subspan(1, 6))));
}

}  // namespace
}  // namespace perseus
