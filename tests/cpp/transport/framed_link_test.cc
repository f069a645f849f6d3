// Tests the link's own rules, with channels that the test drives by hand.
#include "transport/framed_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace perseus {
namespace {

constexpr uint64_t kChunk = 4096;

struct FakeChannel final : Channel {
  bool started = false, closed = false;
  int kicks = 0;
  FramePort* pulls_from = nullptr;  // when kicked
  uint32_t last_kind = 0;
  Kind kind() const override { return Kind::kTcp; }
  void start() override { started = true; }
  void kick() override {
    ++kicks;
    Frame frame;
    if (pulls_from == nullptr || !pulls_from->next(frame, kChunk)) return;
    last_kind = frame.header.kind();
    pulls_from->sent(frame);
  }
  void close() override { closed = true; }
};

struct FramedLinkTest : testing::Test, LinkObserver {
  EventLoop loop;
  BufferPool buffers;
  TrafficCounters counters;
  LinkEnvironment environment{loop, buffers, *this, counters, kChunk, kChunk};
  // Channel 0 is the express channel.
  FramedLink link{environment, 3, "rank 3 on host", 3, false};
  FakeChannel* channels[3];
  std::vector<std::string> controls;
  std::vector<Status> lost;
  int closed = 0;
  std::vector<std::byte> bytes = std::vector<std::byte>(1 << 20);

  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      auto channel = std::make_unique<FakeChannel>();
      channels[i] = channel.get();
      link.attach(i, std::move(channel));
    }
  }

  void link_control(int, std::span<const std::byte> message) override {
    controls.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  }
  void connection_needed(int) override {}
  void link_lost(int, const Status& why) override { lost.push_back(why); }
  void link_closed(int) override { ++closed; }

  bool arrive_mark(int port, uint32_t kind, uint64_t number) {
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | kind;
    header.number() = number;
    return link.port(port).arrived(header, bytes.data(), {});
  }
  bool arrive(int port, uint32_t kind, uint64_t size, uint64_t offset, uint64_t length) {
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | kind;
    header.size = size;
    header.offset = offset;
    header.length = static_cast<uint32_t>(length);
    return link.port(port).arrived(header, bytes.data(), {});
  }
  // The kind of the next frame on a port, which is then sent; 0 if there is none.
  uint32_t pull(int port) { return pull(link, port); }
  static uint32_t pull(FramedLink& from, int port) {
    Frame frame;
    if (!from.port(port).next(frame, kChunk)) return 0;
    from.port(port).sent(frame);
    return frame.header.kind();
  }
};

TEST_F(FramedLinkTest, ControlLeavesByTheFirstChannelOnlyAndBeforeData) {
  Transfer transfer;
  link.send(transfer, Tag{1, 0, 0}, bytes.data(), 100, 1000);
  link.send_control({bytes.data(), 10});
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(1), 0u);
  EXPECT_EQ(pull(0), FrameHeader::kControl);
  EXPECT_EQ(pull(0), 0u);
  EXPECT_TRUE(transfer.done());
}

TEST_F(FramedLinkTest, TheOnlyChannelCarriesControlBeforeData) {
  FramedLink single(environment, 3, "rank 3 on host", 1, false);
  single.attach(0, std::make_unique<FakeChannel>());
  Transfer transfer;
  single.send(transfer, Tag{1, 0, 0}, bytes.data(), 100, 0);
  single.send_control({bytes.data(), 10});
  for (const uint32_t kind : {FrameHeader::kControl, FrameHeader::kData}) {
    Frame frame;
    ASSERT_TRUE(single.port(0).next(frame, kChunk));
    EXPECT_EQ(frame.header.kind(), kind);
    single.port(0).sent(frame);
  }
}

TEST_F(FramedLinkTest, TheExpressTakesDataThatIsMoreUrgentThanWhatAnotherChannelHasTaken) {
  Transfer large, urgent;
  link.send(large, Tag{1, 0, 0}, bytes.data(), 10 * kChunk, 5);
  EXPECT_EQ(pull(0), 0u);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(2), FrameHeader::kData);
  EXPECT_EQ(pull(0), 0u);
  link.send(urgent, Tag{2, 0, 0}, bytes.data(), 5 * kChunk, 6);
  EXPECT_EQ(pull(0), FrameHeader::kData);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(0), FrameHeader::kData);
  EXPECT_EQ(pull(2), FrameHeader::kData);
  EXPECT_EQ(pull(0), 0u);  // each of the other channels carries some of it
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_TRUE(urgent.done());
  EXPECT_FALSE(large.done());
}

TEST_F(FramedLinkTest, ALinkKeepsToItsLastChannelWhileAnotherHasMoreUrgentData) {
  FramedLink other(environment, 4, "rank 4 on host", 3, false);
  Transfer large, urgent, equal;
  other.send(urgent, Tag{2, 0, 0}, bytes.data(), 2 * kChunk, 6);
  link.send(large, Tag{1, 0, 0}, bytes.data(), 10 * kChunk, 5);
  EXPECT_EQ(pull(1), FrameHeader::kData);  // the other has no channels yet
  for (int i = 0; i < 3; ++i) other.attach(i, std::make_unique<FakeChannel>());
  EXPECT_EQ(pull(1), 0u);
  EXPECT_EQ(pull(2), FrameHeader::kData);
  EXPECT_EQ(pull(other, 1), FrameHeader::kData);
  EXPECT_EQ(pull(1), 0u);
  EXPECT_EQ(pull(other, 2), FrameHeader::kData);
  EXPECT_TRUE(urgent.done());
  // In the loop's next turn it goes on, even if its last channel is stuck.
  const int kicks = channels[1]->kicks;
  loop.run_once(std::chrono::milliseconds(0));
  EXPECT_EQ(channels[1]->kicks, kicks + 1);
  loop.run_once(std::chrono::milliseconds(0));
  EXPECT_EQ(channels[1]->kicks, kicks + 1);
  other.send(equal, Tag{3, 0, 0}, bytes.data(), kChunk, 5);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(other, 1), FrameHeader::kData);
}

TEST_F(FramedLinkTest, ALinkGoesOnAfterYieldingBeforeAllItsChannelsAreThere) {
  FramedLink late(environment, 4, "rank 4 on host", 4, false);
  Transfer large, urgent;
  late.send(large, Tag{1, 0, 0}, bytes.data(), 10 * kChunk, 5);
  late.attach(1, std::make_unique<FakeChannel>());
  link.send(urgent, Tag{2, 0, 0}, bytes.data(), kChunk, 6);
  EXPECT_EQ(pull(late, 1), 0u);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  late.attach(3, std::make_unique<FakeChannel>());
  EXPECT_EQ(pull(late, 3), FrameHeader::kData);
  EXPECT_EQ(pull(late, 1), FrameHeader::kData);
}

TEST_F(FramedLinkTest, ALinkThatIsGoneIsNotCalled) {
  Transfer large, urgent;
  FramedLink other(environment, 4, "rank 4 on host", 3, false);
  for (int i = 0; i < 3; ++i) other.attach(i, std::make_unique<FakeChannel>());
  other.send(urgent, Tag{2, 0, 0}, bytes.data(), kChunk, 6);
  {
    FramedLink gone(environment, 5, "rank 5 on host", 3, false);
    for (int i = 0; i < 3; ++i) gone.attach(i, std::make_unique<FakeChannel>());
    gone.send(large, Tag{1, 0, 0}, bytes.data(), kChunk, 5);
    EXPECT_EQ(pull(gone, 1), 0u);
    gone.abort(Status::aborted("cut"));
  }
  EXPECT_EQ(pull(other, 1), FrameHeader::kData);
  loop.run_once(std::chrono::milliseconds(0));
}

TEST_F(FramedLinkTest, OnlyAsManyStreamsAsAreAskedForCarryData) {
  environment.streams = 1;
  Transfer large, urgent;
  link.send(large, Tag{1, 0, 0}, bytes.data(), 10 * kChunk, 5);
  EXPECT_EQ(pull(2), 0u);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  link.send(urgent, Tag{2, 0, 0}, bytes.data(), 2 * kChunk, 6);
  EXPECT_EQ(pull(2), 0u);
  EXPECT_EQ(pull(0), FrameHeader::kData);  // and the express channel
  environment.streams = 2;
  EXPECT_EQ(pull(2), FrameHeader::kData);
  EXPECT_TRUE(urgent.done());
}

TEST_F(FramedLinkTest, NobodyYieldsToALinkThatIsOver) {
  FramedLink other(environment, 4, "rank 4 on host", 2, false);
  for (int i = 0; i < 2; ++i) other.attach(i, std::make_unique<FakeChannel>());
  Transfer large, urgent;
  link.send(large, Tag{1, 0, 0}, bytes.data(), 10 * kChunk, 5);
  other.send(urgent, Tag{2, 0, 0}, bytes.data(), kChunk, 6);
  EXPECT_EQ(pull(1), 0u);
  other.abort(Status::aborted("cut"));
  EXPECT_EQ(pull(1), FrameHeader::kData);
}

TEST_F(FramedLinkTest, LongControlMessagesAreCutAndPutTogether) {
  link.send_control({bytes.data(), 3 * kChunk + 1});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pull(0), FrameHeader::kControl);
  EXPECT_EQ(pull(0), 0u);
  EXPECT_TRUE(arrive(0, FrameHeader::kControl, kChunk + 5, 0, kChunk));
  EXPECT_TRUE(controls.empty());
  EXPECT_TRUE(arrive(0, FrameHeader::kControl, kChunk + 5, kChunk, 5));
  ASSERT_EQ(controls.size(), 1u);
  EXPECT_EQ(controls[0].size(), kChunk + 5);
}

TEST_F(FramedLinkTest, SmallerFramesAreSentAndLargeOnesStillTaken) {
  environment.frame_bytes = kChunk / 2;
  Transfer sending, receiving;
  link.send(sending, Tag{1, 0, 0}, bytes.data(), kChunk, 0);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_FALSE(sending.done());
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_TRUE(sending.done());
  link.receive(receiving, Tag{}, bytes.data(), kChunk);
  EXPECT_TRUE(arrive(0, FrameHeader::kData, kChunk, 0, kChunk));
  EXPECT_TRUE(receiving.done());
}

TEST_F(FramedLinkTest, ARequestForMarksIsAnsweredOnEveryChannelBeforeAnythingElse) {
  Transfer transfer;
  link.send(transfer, Tag{1, 0, 0}, bytes.data(), kChunk, 0);
  link.send_control({bytes.data(), 10});
  const int kicks = channels[2]->kicks;
  EXPECT_TRUE(arrive_mark(0, FrameHeader::kMarkRequest, 7));
  EXPECT_GT(channels[2]->kicks, kicks);
  for (int port = 0; port < 3; ++port) {
    Frame frame;
    ASSERT_TRUE(link.port(port).next(frame, kChunk));
    EXPECT_EQ(frame.header.kind(), FrameHeader::kMark);
    EXPECT_EQ(frame.header.number(), 7u);
    link.port(port).sent(frame);
  }
  EXPECT_EQ(pull(0), FrameHeader::kControl);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(2), 0u);
}

TEST_F(FramedLinkTest, MuchDataIsFollowedByAMark) {
  Transfer transfer;
  link.send(transfer, Tag{1, 0, 0}, bytes.data(), 4 * kMarkedBytes, 0);
  uint64_t unmarked = 0, marks = 0;
  for (uint32_t kind = pull(1); kind != 0; kind = pull(1)) {
    unmarked = kind == FrameHeader::kMark ? 0 : unmarked + kChunk;
    marks += kind == FrameHeader::kMark;
    ASSERT_LE(unmarked, kMarkedBytes);
  }
  EXPECT_GE(marks, 4u);
}

TEST_F(FramedLinkTest, MuchSmallDataIsFollowedByAMark) {
  std::vector<Transfer> transfers(kMarkedBytes / kMarkedFrame + 1);
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    link.send(transfers[i], Tag{1, i, 0}, bytes.data(), 8, 0);
  }
  size_t frames = 0;
  while (pull(1) == FrameHeader::kData) ++frames;
  EXPECT_LE(frames, kMarkedBytes / kMarkedFrame);
  EXPECT_FALSE(transfers.back().done());
}

// Nobody but somebody in between sends this.
TEST_F(FramedLinkTest, MuchDataThatNoMarkFollowsEndsTheLinkWithinBoundsOfMemory) {
  uint64_t frames = 0;
  while (frames < 10 * kMarkedBytes / kChunk && arrive(1, FrameHeader::kData, 8, 0, 8)) {
    Transfer transfer;  // each frame is awaited, so that they have a tag again and again
    char target[8];
    link.receive(transfer, Tag{}, target, sizeof target);
    ++frames;
  }
  EXPECT_LE(frames, kMarkedBytes / kMarkedFrame);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].peer(), Status::kNobody);
  EXPECT_NE(lost[0].message().find("rank 3 on host: more than 8 MiB of data came without a proof"),
            std::string::npos)
      << lost[0].message();
}

TEST_F(FramedLinkTest, AMarkAllowsMoreData) {
  for (uint64_t frames = 0; frames < 4 * kMarkedBytes / kMarkedFrame; ++frames) {
    ASSERT_TRUE(arrive(1, FrameHeader::kData, 8, 0, 8));
    Transfer transfer;
    char target[8];
    link.receive(transfer, Tag{}, target, sizeof target);
    ASSERT_TRUE(transfer.done());
    if (frames % 1000 == 999) {
      ASSERT_TRUE(arrive_mark(1, FrameHeader::kMark, 0));
    }
  }
}

TEST_F(FramedLinkTest, DataThatIsHeldBackEndsTheLinkAndBlamesNeitherRank) {
  environment.silence = std::chrono::milliseconds(160);
  FramedLink waiting(environment, 3, "rank 3 on host", 3, false);
  for (int i = 0; i < 3; ++i) waiting.attach(i, std::make_unique<FakeChannel>());
  Transfer transfer;
  char target;
  waiting.receive(transfer, Tag{1, 0, 0}, &target, 1);
  FrameHeader mark;
  mark.magic_and_kind = FrameHeader::kMagic | FrameHeader::kMark;
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (lost.empty() && Clock::now() < end) {
    loop.run_once(std::chrono::milliseconds(5));
    Frame frame;
    if (lost.empty() && waiting.port(0).next(frame, kChunk)) {
      EXPECT_EQ(frame.header.kind(), FrameHeader::kMarkRequest);
      mark.number() = frame.header.number();
      // Channel 1 is silent.
      for (const int port : {2, 0}) EXPECT_TRUE(waiting.port(port).arrived(mark, nullptr, {}));
    }
  }
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].peer(), Status::kNobody);
  EXPECT_NE(lost[0].message().find("what rank 3 on host has sent to this rank has not arrived"),
            std::string::npos)
      << lost[0].message();
  EXPECT_TRUE(transfer.done());
}

TEST_F(FramedLinkTest, ThePeerIsToldWhyALinkBreaksOff) {
  channels[0]->pulls_from = &link.port(0);
  link.port(1).disturbed("somebody has changed it");
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(channels[0]->last_kind, FrameHeader::kBreakOff);
}

TEST_F(FramedLinkTest, AChannelThatEndsWaitsForThePeerToSayWhy) {
  const std::string why = "somebody has changed it";
  link.port(1).failed(Status::aborted("end of stream"));
  EXPECT_TRUE(lost.empty());
  std::memcpy(bytes.data(), why.data(), why.size());
  EXPECT_FALSE(arrive(0, FrameHeader::kBreakOff, why.size(), 0, why.size()));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].peer(), Status::kNobody);
  EXPECT_EQ(lost[0].message(), why);
}

TEST_F(FramedLinkTest, AChannelThatEndsWithoutAReasonEndsTheLinkSoon) {
  link.port(1).failed(Status::aborted("end of stream"));
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (lost.empty() && Clock::now() < end) loop.run_once(std::chrono::milliseconds(5));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].message(), "lost rank 3 on host: end of stream");
}

TEST_F(FramedLinkTest, AChannelThatEndsWhileThePeerAnswersIsBlamedOnNobody) {
  link.port(1).failed(Status::aborted("end of stream"));
  Frame frame;
  ASSERT_TRUE(link.port(0).next(frame, kChunk));
  ASSERT_EQ(frame.header.kind(), FrameHeader::kMarkRequest);
  const uint64_t number = frame.header.number();
  EXPECT_TRUE(arrive_mark(0, FrameHeader::kMark, number - 1));  // of an earlier request
  EXPECT_TRUE(lost.empty());
  EXPECT_FALSE(arrive_mark(0, FrameHeader::kMark, number));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].peer(), Status::kNobody);
  EXPECT_EQ(
      lost[0].message(),
      "this rank has broken off with rank 3 on host: the connection has ended: end of stream; "
      "but that rank answers over another connection, so something between the hosts is to blame");
}

TEST_F(FramedLinkTest, AConnectionThatCannotBeMadeToAPeerThatAnswersIsBlamedOnNobody) {
  FramedLink partial(environment, 3, "rank 3 on host", 3, false);
  partial.attach(0, std::make_unique<FakeChannel>());
  partial.cannot_connect(Status::unreachable("no answer"));
  EXPECT_TRUE(lost.empty());
  FrameHeader mark;
  mark.magic_and_kind = FrameHeader::kMagic | FrameHeader::kMark;
  mark.number() = 1;
  EXPECT_FALSE(partial.port(0).arrived(mark, nullptr, {}));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].peer(), Status::kNobody);
  EXPECT_NE(lost[0].message().find("a connection is missing: no answer"), std::string::npos);
}

TEST_F(FramedLinkTest, APeerThatCannotBeReachedAtAllIsLost) {
  FramedLink none(environment, 3, "rank 3 on host", 3, false);
  none.cannot_connect(Status::unreachable("no answer"));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].message(), "lost rank 3 on host: no answer");
}

TEST_F(FramedLinkTest, AMessageOfAnotherSizeIsBlamedOnNobody) {
  for (const bool comes_first : {false, true}) {
    FramedLink victim(environment, 3, "rank 3 on host", 3, false);
    for (int i = 0; i < 3; ++i) victim.attach(i, std::make_unique<FakeChannel>());
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
    header.size = header.length = 8;
    Transfer transfer;
    char target[100];
    if (comes_first) {
      EXPECT_TRUE(victim.port(1).arrived(header, bytes.data(), {}));
    }
    victim.receive(transfer, Tag{}, target, sizeof target);
    if (!comes_first) {
      EXPECT_FALSE(victim.port(1).arrived(header, bytes.data(), {}));
    }
    ASSERT_TRUE(transfer.done());
    const Status status = transfer.await_resume();
    EXPECT_EQ(status.peer(), Status::kNobody);
    EXPECT_EQ(
        status.message(),
        "this rank has broken off with rank 3 on host: a message of 8 bytes arrived where "
        "100 were expected; no rank sends that, so something between the hosts has changed it");
  }
  EXPECT_EQ(lost.size(), 2u);
}

TEST_F(FramedLinkTest, AProcessThatHasDiedIsNotWaitedFor) {
  link.port(2).failed(Status::aborted("end of stream"));
  link.port(0).failed(Status::aborted("end of stream"));
  EXPECT_EQ(lost.size(), 1u);
}

struct BadFrame {
  int port;
  uint32_t kind;
  uint64_t size, offset, length;
};

TEST_F(FramedLinkTest, MalformedFramesEndTheLinkWithAReason) {
  const std::vector<BadFrame> bad = {
      {0, 0, 8, 0, 8},                                    // an unknown kind
      {0, 77, 8, 0, 8},                                   // another unknown kind
      {0, FrameHeader::kData, 8, 4, 8},                   // beyond the message
      {0, FrameHeader::kData, 8, ~0ull - 3, 8},           // the sum overflows
      {0, FrameHeader::kData, 1 << 20, 0, kChunk + 1},    // beyond the chunk
      {0, FrameHeader::kData, 8, 0, 0},                   // makes no progress
      {1, FrameHeader::kControl, 8, 0, 8},                // control on a second channel
      {0, FrameHeader::kControl, (64u << 20) + 1, 0, 8},  // beyond the bound
      {0, FrameHeader::kControl, 100, 50, 8},             // without its beginning
  };
  for (const BadFrame& frame : bad) {
    FramedLink victim(environment, 3, "rank 3 on host", 2, false);
    victim.attach(0, std::make_unique<FakeChannel>());
    victim.attach(1, std::make_unique<FakeChannel>());
    Transfer awaited;
    char target;
    victim.receive(awaited, Tag{9, 0, 0}, &target, 1);
    FrameHeader header;
    header.magic_and_kind = FrameHeader::kMagic | frame.kind;
    header.size = frame.size;
    header.offset = frame.offset;
    header.length = static_cast<uint32_t>(frame.length);
    EXPECT_EQ(victim.port(frame.port).target(header), nullptr);
    EXPECT_FALSE(victim.port(frame.port).arrived(header, bytes.data(), {}));
    ASSERT_TRUE(awaited.done());
    const Status status = awaited.await_resume();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("broken off with rank 3 on host: "), std::string::npos);
    EXPECT_EQ(status.peer(), Status::kNobody);
  }
  EXPECT_EQ(lost.size(), bad.size());
}

TEST_F(FramedLinkTest, APeerHasLeftOnlyOnceAllChannelsSaidGoodbye) {
  EXPECT_TRUE(arrive(0, FrameHeader::kGoodbye, 0, 0, 0));
  link.port(0).failed(Status::aborted("end of stream"));
  EXPECT_FALSE(link.has_left());
  EXPECT_TRUE(arrive(1, FrameHeader::kData, 8, 0, 8));
  EXPECT_TRUE(arrive(1, FrameHeader::kGoodbye, 0, 0, 0));
  EXPECT_FALSE(link.has_left());
  EXPECT_FALSE(arrive(2, FrameHeader::kGoodbye, 0, 0, 0));
  EXPECT_TRUE(link.has_left());
  EXPECT_TRUE(lost.empty());
  EXPECT_TRUE(channels[0]->closed && channels[1]->closed && channels[2]->closed);
}

TEST_F(FramedLinkTest, ClosingSendsWhatIsQueuedThenGoodbyeOnEveryChannel) {
  Transfer transfer;
  link.send(transfer, Tag{1, 0, 0}, bytes.data(), 2 * kChunk, 0);
  link.close();
  EXPECT_EQ(pull(0), FrameHeader::kGoodbye);
  EXPECT_EQ(pull(1), FrameHeader::kData);
  EXPECT_EQ(pull(2), FrameHeader::kData);
  EXPECT_EQ(pull(2), FrameHeader::kGoodbye);
  EXPECT_EQ(pull(2), 0u);
  EXPECT_EQ(pull(1), FrameHeader::kGoodbye);
  EXPECT_TRUE(arrive(0, FrameHeader::kGoodbye, 0, 0, 0));
  EXPECT_TRUE(arrive(1, FrameHeader::kGoodbye, 0, 0, 0));
  EXPECT_EQ(closed, 0);
  EXPECT_FALSE(arrive(2, FrameHeader::kGoodbye, 0, 0, 0));
  EXPECT_EQ(closed, 1);
}

TEST_F(FramedLinkTest, ALinkIsLostOnce) {
  link.port(0).failed(Status::aborted("cut"));
  link.port(1).failed(Status::aborted("cut too"));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].message(), "lost rank 3 on host: cut");
  Transfer late;
  link.send(late, Tag{1, 0, 0}, bytes.data(), 1, 0);
  EXPECT_TRUE(late.done());
}

}  // namespace
}  // namespace perseus
