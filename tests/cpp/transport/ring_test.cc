#include "transport/shm/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace perseus {
namespace {

struct Ring {
  std::unique_ptr<RingMemory> memory = std::make_unique<RingMemory>();
  RingProducer producer;
  RingConsumer consumer;

  Ring() {
    producer.attach(*memory);
    consumer.attach(*memory);
  }

  // Pops a frame, and returns its number.
  uint64_t pop() {
    FrameHeader header;
    const std::byte* bytes = nullptr;
    uint32_t where = kInline;
    EXPECT_EQ(consumer.front(header, where, bytes), RingConsumer::Outcome::kFrame);
    consumer.pop();
    return header.size;
  }
};

Frame frame_of(const std::vector<std::byte>& bytes, size_t length, uint64_t number) {
  Frame frame;
  frame.header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
  frame.header.length = static_cast<uint32_t>(length);
  frame.header.size = number;
  frame.data = bytes.data();
  return frame;
}

TEST(RingTest, FramesOfAllSizesPassWholeAndInOrderBetweenThreads) {
  Ring ring;
  constexpr uint64_t kFrames = 20000;
  const auto length_of = [](uint64_t i) {
    return i % 50 == 0 ? kMaxRingFrame - i % 3 : (i * 7919) % 3000;
  };
  std::thread producer([&] {
    std::vector<std::byte> bytes(kMaxRingFrame);
    for (uint64_t i = 0; i < kFrames; ++i) {
      const size_t length = length_of(i);
      if (length != 0) std::memset(bytes.data(), static_cast<int>(i), length);
      while (!ring.producer.has_room()) std::this_thread::yield();
      ring.producer.commit(frame_of(bytes, length, i));
    }
  });
  for (uint64_t i = 0; i < kFrames; ++i) {
    FrameHeader header;
    const std::byte* bytes = nullptr;
    uint32_t where = kInline;
    RingConsumer::Outcome outcome;
    while ((outcome = ring.consumer.front(header, where, bytes)) == RingConsumer::Outcome::kEmpty) {
      std::this_thread::yield();
    }
    ASSERT_EQ(outcome, RingConsumer::Outcome::kFrame);
    ASSERT_EQ(header.size, i);
    ASSERT_EQ(header.length, length_of(i));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(bytes) % 64, 0u);
    if (header.length != 0) {
      ASSERT_EQ(bytes[0], static_cast<std::byte>(i));
      ASSERT_EQ(bytes[header.length - 1], static_cast<std::byte>(i));
    }
    ring.consumer.pop();
  }
  producer.join();
}

TEST(RingTest, AFullRingTakesNoMoreUntilAFrameIsPopped) {
  Ring ring;
  const std::vector<std::byte> bytes(kMaxRingFrame);
  uint64_t count = 0;
  while (ring.producer.has_room()) {
    ring.producer.commit(frame_of(bytes, kMaxRingFrame, count++));
  }
  EXPECT_GE(count, 4u);
  EXPECT_FALSE(ring.producer.wait_for_room());
  FrameHeader header;
  const std::byte* at = nullptr;
  uint32_t where = kInline;
  ASSERT_EQ(ring.consumer.front(header, where, at), RingConsumer::Outcome::kFrame);
  EXPECT_TRUE(ring.consumer.pop()) << "the waiting producer must be rung";
  EXPECT_FALSE(ring.memory->producer_wants_bell.load());
  // The gap at the end may need a second one.
  if (!ring.producer.has_room()) EXPECT_EQ(ring.pop(), 1u);
  EXPECT_TRUE(ring.producer.has_room());
}

TEST(RingTest, ShortFramesFillTheSlotsAndNoMore) {
  Ring ring;
  const std::vector<std::byte> bytes(8);
  uint64_t count = 0;
  while (ring.producer.has_room()) ring.producer.commit(frame_of(bytes, 8, count++));
  EXPECT_EQ(count, kRingSlots);
  EXPECT_EQ(ring.pop(), 0u);
  EXPECT_TRUE(ring.producer.has_room());
  ring.producer.commit(frame_of(bytes, 8, count++));
  EXPECT_FALSE(ring.producer.has_room());
  for (uint64_t i = 1; i < count; ++i) EXPECT_EQ(ring.pop(), i);
  EXPECT_FALSE(ring.consumer.wait_for_frame());
}

TEST(RingTest, ACountThatCannotBeIsNotBelieved) {
  Ring ring;
  const std::vector<std::byte> bytes(8);
  for (uint64_t i = 0; i < kRingSlots; ++i) ring.producer.commit(frame_of(bytes, 8, i));
  ring.memory->consumed.store(kRingSlots + 1);
  EXPECT_FALSE(ring.producer.has_room());
}

TEST(RingTest, AConsumerIsRungOnlyIfItAskedForIt) {
  Ring ring;
  const std::vector<std::byte> bytes(8);
  EXPECT_FALSE(ring.producer.commit(frame_of(bytes, 8, 0)));
  EXPECT_TRUE(ring.consumer.wait_for_frame());
  FrameHeader header;
  const std::byte* at = nullptr;
  uint32_t where = kInline;
  ring.consumer.front(header, where, at);
  ring.consumer.pop();
  EXPECT_FALSE(ring.consumer.wait_for_frame());
  EXPECT_TRUE(ring.producer.commit(frame_of(bytes, 8, 1)));
  EXPECT_FALSE(ring.producer.commit(frame_of(bytes, 8, 2)));
}

TEST(RingTest, ALengthBeyondTheLargestFrameIsDamage) {
  Ring ring;
  const std::vector<std::byte> bytes(8);
  ring.producer.commit(frame_of(bytes, 8, 0));
  ring.memory->slots[0].frame.length = kMaxRingFrame + 1;
  FrameHeader header;
  const std::byte* at = nullptr;
  uint32_t where = kInline;
  EXPECT_EQ(ring.consumer.front(header, where, at), RingConsumer::Outcome::kDamaged);
}

}  // namespace
}  // namespace perseus
