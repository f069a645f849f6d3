#include "transport/shm/outbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace perseus {
namespace {

struct OutboxTest : testing::Test {
  Outbox outbox;
  OutboxReader reader;
  const std::string text = "the quick brown fox";
  Transfer transfer;

  void SetUp() override {
    ASSERT_TRUE(outbox.open_for_peer().is_ok());
    ASSERT_TRUE(reader.map(FileDescriptor(dup(outbox.fd()))).is_ok());
  }
  // A whole message.
  Frame frame() {
    Frame frame;
    frame.header.length = static_cast<uint32_t>(text.size());
    frame.header.size = text.size();
    frame.data = reinterpret_cast<const std::byte*>(text.data());
    frame.transfer = &transfer;
    return frame;
  }
  uint32_t free_slots() {
    std::vector<Lease> leases;
    for (uint32_t place = outbox.put(frame()); place != kInline; place = outbox.put(frame())) {
      leases.push_back(reader.lease(place));
    }
    return static_cast<uint32_t>(leases.size());
  }
  std::string read(uint32_t place) {
    const auto* bytes = reader.payload(place, static_cast<uint32_t>(text.size()));
    return bytes == nullptr ? "" : std::string(reinterpret_cast<const char*>(bytes), text.size());
  }
};

TEST_F(OutboxTest, APayloadStaysUntilItsLeaseEndsAndThenMakesRoom) {
  std::vector<Lease> leases;
  for (uint32_t i = 0; i < kOutboxSlots; ++i) {
    const uint32_t place = outbox.put(frame());
    ASSERT_NE(place, kInline);
    EXPECT_EQ(read(place), text);
    leases.push_back(reader.lease(place));
  }
  EXPECT_EQ(outbox.put(frame()), kInline) << "all slots are in use";
  leases.pop_back();
  EXPECT_NE(outbox.put(frame()), kInline);
  EXPECT_EQ(outbox.put(frame()), kInline);
}

TEST_F(OutboxTest, ItIsWornWhileTooManySlotsAreOnLoan) {
  std::vector<Lease> leases;
  while (leases.size() < kOutboxSlots / 4) leases.push_back(reader.lease(outbox.put(frame())));
  outbox.close_for_peer();  // what it has on loan stays so
  EXPECT_FALSE(outbox.is_worn());
  leases.push_back(reader.lease(outbox.put(frame())));
  EXPECT_TRUE(outbox.is_worn());
  leases.pop_back();
  EXPECT_FALSE(outbox.is_worn());
}

TEST_F(OutboxTest, FewSlotsAreUsedWhereFewAreNeeded) {
  std::set<uint32_t> places;
  for (uint32_t i = 0; i < 4 * kOutboxSlots; ++i) {
    const uint32_t place = outbox.put(frame());
    places.insert(place);
    const Lease ends = reader.lease(place);
  }
  EXPECT_GT(places.size(), 1u);
  EXPECT_LT(places.size(), kOutboxSlots);
}

TEST_F(OutboxTest, WhatGoesToSeveralIsThereOnceUntilAllHaveReadIt) {
  SharedPayload shared(3);
  transfer.shared = &shared;
  const uint32_t place = outbox.put(frame());
  {
    const Lease ends = reader.lease(place);
  }
  // Kept for the two sends that are left, though nobody reads it now.
  EXPECT_EQ(outbox.put(frame()), place);
  EXPECT_EQ(outbox.put(frame()), place);
  {
    const Lease ends = reader.lease(place);
  }
  transfer.shared = nullptr;
  EXPECT_EQ(free_slots(), kOutboxSlots - 1) << "the third has not read it";
  {
    const Lease ends = reader.lease(place);
  }
  EXPECT_EQ(free_slots(), kOutboxSlots);
}

TEST_F(OutboxTest, WhatWasMeantForMoreIsLetGoWithTheSend) {
  uint32_t place = 0;
  {
    SharedPayload shared(3);
    transfer.shared = &shared;
    place = outbox.put(frame());
    transfer.shared = nullptr;
    {
      const Lease ends = reader.lease(place);
    }
    EXPECT_EQ(free_slots(), kOutboxSlots - 1);
  }
  EXPECT_EQ(free_slots(), kOutboxSlots);
}

TEST_F(OutboxTest, PartsOfAMessageAreNotShared) {
  SharedPayload shared(2);
  transfer.shared = &shared;
  Frame part = frame();
  part.header.size *= 2;
  const uint32_t first = outbox.put(part);
  EXPECT_NE(outbox.put(part), first);
}

TEST_F(OutboxTest, APlaceThatIsNoneIsNotRead) {
  EXPECT_EQ(reader.payload(0, 1), nullptr);
  EXPECT_EQ(reader.payload(1, 1), nullptr);
  EXPECT_EQ(reader.payload(UINT32_MAX, 1), nullptr);
  const auto last = static_cast<uint32_t>(kOutboxBytes / 64 - 1);
  EXPECT_NE(reader.payload(last, 64), nullptr);
  EXPECT_EQ(reader.payload(last, 65), nullptr);
}

}  // namespace
}  // namespace perseus
