#include "transport/inbox.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sanitizers.h"

namespace perseus {
namespace {

FrameHeader header_of(Tag tag, uint64_t size, uint64_t offset, uint32_t length) {
  FrameHeader header;
  header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
  header.size = size;
  header.offset = offset;
  header.length = length;
  header.tag = tag;
  return header;
}

struct InboxTest : testing::Test {
  EventLoop loop;
  BufferPool buffers;
  Inbox inbox{loop, buffers};
  const std::string text = "the quick brown fox";
  Status posted;  // by the last post()

  Status arrive(Tag tag, uint64_t offset, uint32_t length, uint64_t size) {
    bool held = false;
    return inbox.arrived(header_of(tag, size, offset, length),
                         reinterpret_cast<const std::byte*>(text.data()) + offset, {}, held);
  }
  void post(Transfer& transfer, Tag tag, void* target, uint64_t bytes) {
    transfer.tag = tag;
    transfer.target = static_cast<std::byte*>(target);
    transfer.bytes = bytes;
    posted = inbox.post(transfer);
  }
};

// Counts the leases that have ended.
struct CountingOwner final : PayloadOwner {
  void give_back(uint32_t) override { ++given_back; }
  int given_back = 0;
};

// A stranger on a plain wire may make them up.
TEST_F(InboxTest, SmallEarlyFramesTakeLittleMoreMemoryThanTheyCarry) {
  if (test::kIsSanitized) GTEST_SKIP() << "a sanitizer pads what is allocated";
  constexpr uint64_t kFrames = 1 << 14;
  const size_t before = mallinfo2().uordblks;
  for (uint64_t i = 0; i < kFrames; ++i) EXPECT_TRUE(arrive({i, 0, 0}, 0, 8, 8).is_ok());
  EXPECT_LT(mallinfo2().uordblks - before, kFrames * 512);
}

TEST_F(InboxTest, AnEarlyFrameUnderALeaseIsReadWhereItIs) {
  CountingOwner owner;
  std::string payload = "early";
  const FrameHeader header = header_of({1, 0, 0}, 5, 0, 5);
  const auto* data = reinterpret_cast<const std::byte*>(payload.data());
  bool held = false;
  EXPECT_TRUE(inbox.arrived(header, data, Lease(owner, 0), held).is_ok());
  EXPECT_TRUE(held);
  EXPECT_EQ(owner.given_back, 0);
  payload = "EARLY";  // a copy would not show this
  std::string target(5, '\0');
  Transfer transfer;
  post(transfer, {1, 0, 0}, target.data(), 5);
  EXPECT_TRUE(transfer.done());
  EXPECT_EQ(target, "EARLY");
  EXPECT_EQ(owner.given_back, 1);

  EXPECT_TRUE(inbox.arrived(header, data, Lease(owner, 0), held).is_ok());
  inbox.clear(Status::aborted("the end"));
  EXPECT_EQ(owner.given_back, 2);
}

TEST_F(InboxTest, FramesOfOneMessageMayComeInAnyOrderBeforeAndAfterTheReceive) {
  std::string target(text.size(), '\0');
  EXPECT_TRUE(arrive({1, 0, 0}, 10, 9, text.size()).is_ok());
  Transfer transfer;
  post(transfer, {1, 0, 0}, target.data(), target.size());
  EXPECT_FALSE(transfer.done());
  EXPECT_TRUE(arrive({1, 0, 0}, 0, 4, text.size()).is_ok());
  const FrameHeader direct = header_of({1, 0, 0}, text.size(), 4, 6);
  std::byte* place = inbox.target(direct);
  ASSERT_EQ(place, reinterpret_cast<std::byte*>(target.data()) + 4);
  EXPECT_FALSE(transfer.done());
  std::memcpy(place, text.data() + 4, 6);
  inbox.landed(direct);
  EXPECT_TRUE(transfer.done());
  EXPECT_EQ(target, text);
}

TEST_F(InboxTest, MoreBytesThanTheMessageHasAreAnError) {
  std::string target(text.size(), '\0');
  Transfer transfer;
  post(transfer, {1, 0, 0}, target.data(), target.size());
  EXPECT_TRUE(arrive({1, 0, 0}, 0, 15, text.size()).is_ok());
  EXPECT_FALSE(arrive({1, 0, 0}, 0, 15, text.size()).is_ok());
  EXPECT_EQ(inbox.target(header_of({1, 0, 0}, text.size(), 0, 15)), nullptr);
  inbox.clear(Status::aborted("end"));
}

TEST_F(InboxTest, FramesThatDisagreeOnTheSizeAreAnError) {
  EXPECT_TRUE(arrive({1, 0, 0}, 0, 4, 19).is_ok());
  EXPECT_FALSE(arrive({1, 0, 0}, 4, 4, 18).is_ok());
}

TEST_F(InboxTest, AMessageOfAnotherSizeThanItsReceiveIsAnError) {
  std::string target(text.size(), '\0');
  Transfer early, late;
  post(early, {1, 0, 0}, target.data(), 5);
  const Status arrived = arrive({1, 0, 0}, 0, 10, text.size());
  EXPECT_EQ(arrived.message(), "a message of 19 bytes arrived where 5 were expected");
  EXPECT_FALSE(early.done());
  EXPECT_TRUE(arrive({2, 0, 0}, 0, 10, text.size()).is_ok());
  post(late, {2, 0, 0}, target.data(), 5);
  EXPECT_EQ(posted.message(), arrived.message());
  EXPECT_FALSE(late.done());
  inbox.clear(Status::aborted("the end"));
  EXPECT_EQ(early.await_resume().code(), StatusCode::kAborted);
  EXPECT_EQ(late.await_resume().code(), StatusCode::kAborted);
}

TEST_F(InboxTest, AnEarlyFrameThatHoldsNoWholeElementsIsAnError) {
  const Reduction reduction{[](void*, const void*, uint64_t) {}, 4, 4};
  Transfer transfer;
  transfer.reduction = &reduction;
  uint32_t target[4] = {};
  EXPECT_TRUE(arrive({1, 0, 0}, 2, 6, sizeof target).is_ok());
  post(transfer, {1, 0, 0}, target, sizeof target);
  EXPECT_EQ(posted.code(), StatusCode::kInternal);
  EXPECT_FALSE(transfer.done());
  inbox.clear(Status::aborted("the end"));
  EXPECT_TRUE(transfer.done());
}

TEST_F(InboxTest, AMessageOfAnotherSizeIsNotTheLastOne) {
  std::string target(text.size(), '\0');
  EXPECT_TRUE(arrive({1, 0, 0}, 0, 19, text.size()).is_ok());
  Transfer transfer;
  transfer.tag = {1, 0, 0};
  transfer.target = reinterpret_cast<std::byte*>(target.data());
  transfer.bytes = 5;
  inbox.post_last(transfer, Status::aborted("gone"));
  ASSERT_TRUE(transfer.done());
  EXPECT_EQ(transfer.await_resume().message(), "gone");
  inbox.clear(Status::aborted("the end"));
}

TEST_F(InboxTest, AfterTheLastFrameOnlyCompleteMessagesCanBeReceived) {
  std::string target(text.size(), '\0');
  EXPECT_TRUE(arrive({1, 0, 0}, 0, 19, text.size()).is_ok());
  EXPECT_TRUE(arrive({2, 0, 0}, 0, 10, text.size()).is_ok());
  for (uint64_t operation : {1, 2, 3}) {
    Transfer transfer;
    transfer.tag = {operation, 0, 0};
    transfer.target = reinterpret_cast<std::byte*>(target.data());
    transfer.bytes = target.size();
    inbox.post_last(transfer, Status::aborted("gone"));
    ASSERT_TRUE(transfer.done());
    EXPECT_EQ(transfer.await_resume().is_ok(), operation == 1);
  }
}

TEST(TagTableTest, AgreesWithAMapUnderRandomInsertionAndErasure) {
  TagTable table;
  std::map<uint64_t, uint64_t> reference;
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t key = random() % 300;
    const Tag tag{key / 10, static_cast<uint32_t>(key % 10), 1};
    IncomingMessage* found = table.find(tag);
    ASSERT_EQ(found != nullptr, reference.count(key) == 1);
    if (found != nullptr) {
      ASSERT_EQ(found->size, reference[key]);
      table.erase(*found);
      reference.erase(key);
    } else {
      table.find_or_insert(tag).size = i;
      reference[key] = i;
    }
    ASSERT_EQ(table.size(), reference.size());
  }
}

}  // namespace
}  // namespace perseus
