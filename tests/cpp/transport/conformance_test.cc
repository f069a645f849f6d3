// The tests that every transport must pass.
#include <gtest/gtest.h>

#include <numeric>

#include "reference/pattern.h"
#include "transport/thread_world.h"
#include "transport/transports_under_test.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

class ConformanceTest : public testing::TestWithParam<TransportUnderTest> {
 protected:
  static Settings settings() {
    return test_settings({{"PERSEUS_TRANSPORT", GetParam().transport},
                          {"PERSEUS_ALLREDUCE_STREAMS", GetParam().streams},
                          {"PERSEUS_WIRE", GetParam().wire}});
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, ConformanceTest, testing::ValuesIn(transports_under_test()),
                         [](const auto& info) { return info.param.name; });

Task receive_pattern(Link& link, Tag tag, size_t bytes, uint32_t seed) {
  Bytes target(bytes);
  Transfer transfer;
  link.receive(transfer, tag, target.data(), bytes);
  Status status = co_await transfer;
  const bool intact = !status.is_ok() || target == pattern(bytes, seed);
  EXPECT_TRUE(intact) << bytes << " bytes, operation " << tag.operation;
  co_return status;
}

Task send_pattern(Link& link, Tag tag, size_t bytes, uint32_t seed, int32_t priority = 0) {
  const Bytes source = pattern(bytes, seed);
  Transfer transfer;
  link.send(transfer, tag, source.data(), bytes, priority);
  Status status = co_await transfer;
  co_return status;
}

// Waits until the peer has reached the same point.
Task meet(RankContext& rank, int peer) {
  Link& link = rank.mesh.link(peer);
  const Tag tag{~0ull, 0, 0};
  char mine = 1, theirs = 0;
  Transfer out, in;
  link.receive(in, tag, &theirs, 1);
  link.send(out, tag, &mine, 1, 0);
  Status sent = co_await out;
  Status received = co_await in;
  co_return sent.is_ok() ? received : sent;
}

TEST_P(ConformanceTest, MessagesMeetTheirReceivesWhateverTheOrderOfTags) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr uint32_t kMessages = 60;
    std::vector<Task> tasks;
    for (uint32_t i = 0; i < kMessages; ++i) {
      const uint32_t message = rank.rank == 0 ? i : kMessages - 1 - i;
      const Tag tag{message / 20, message / 5 % 4, message % 5};
      const size_t bytes = 1 + message * 777;
      tasks.push_back(rank.rank == 0 ? send_pattern(link, tag, bytes, message)
                                     : receive_pattern(link, tag, bytes, message));
    }
    AllTasks all(tasks);
    co_return co_await all;
  });
}

TEST_P(ConformanceTest, MessagesLargerThanAnyBufferArriveIntact) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    std::vector<Task> tasks;
    for (uint32_t i = 0; i < 3; ++i) {
      const size_t bytes = (6u << 20) + 12345 * i + 1;
      tasks.push_back(rank.rank == 1 ? send_pattern(link, Tag{i, 0, 0}, bytes, i)
                                     : receive_pattern(link, Tag{i, 0, 0}, bytes, i));
    }
    AllTasks all(tasks);
    co_return co_await all;
  });
}

TEST_P(ConformanceTest, SizesAroundEveryBoundaryArriveIntact) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kChunk = 128 << 10;
    const std::vector<size_t> sizes = {1,          7,      63,         64,         65,
                                       4095,       4096,   32 << 10,   kChunk - 1, kChunk,
                                       kChunk + 1, 262143, kChunk * 8, 1048577};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tag tag{1, 0, static_cast<uint32_t>(i)};
      Task task = rank.rank == 0 ? send_pattern(link, tag, sizes[i], 3)
                                 : receive_pattern(link, tag, sizes[i], 3);
      Status status = co_await std::move(task);
      if (!status.is_ok()) co_return status;
    }
    co_return Status::ok();
  });
}

TEST_P(ConformanceTest, AMessageOfNoBytesIsReceivedOnlyOnceItIsSent) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    Transfer empty;
    if (rank.rank == 0) {
      link.receive(empty, Tag{5, 0, 0}, nullptr, 0);
      Task met = meet(rank, 1);
      Status status = co_await std::move(met);
      EXPECT_FALSE(empty.done());
      rank.send_text(1, "go");
      Status received = co_await empty;
      co_return status.is_ok() ? received : status;
    }
    Task met = meet(rank, 0);
    Status status = co_await std::move(met);
    while (rank.listener.controls.empty()) {
      auto news = rank.listener.news();
      co_await news;
    }
    link.send(empty, Tag{5, 0, 0}, nullptr, 0, 0);
    Status sent = co_await empty;
    co_return status.is_ok() ? sent : status;
  });
}

void add_floats(void* accumulator, const void* arriving, size_t elements) {
  auto* sum = static_cast<float*>(accumulator);
  const auto* values = static_cast<const float*>(arriving);
  for (size_t i = 0; i < elements; ++i) sum[i] += values[i];
}

void add_shorts_to_ints(void* accumulator, const void* arriving, size_t elements) {
  auto* sum = static_cast<int32_t*>(accumulator);
  const auto* values = static_cast<const int16_t*>(arriving);
  for (size_t i = 0; i < elements; ++i) sum[i] += values[i];
}

TEST_P(ConformanceTest, ArrivingElementsAreReducedIntoTheAccumulator) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kElements = 300001;
    const Reduction sum{add_floats, sizeof(float), sizeof(float)};
    std::vector<float> mine(kElements), source;
    for (size_t i = 0; i < kElements; ++i) mine[i] = static_cast<float>(i % 1000) + rank.rank;
    source = mine;
    Transfer out, in;
    link.receive(in, Tag{2, 0, 0}, mine.data(), kElements * sizeof(float), &sum);
    link.send(out, Tag{2, 0, 0}, source.data(), kElements * sizeof(float), 0);
    Status sent = co_await out;
    Status received = co_await in;
    size_t wrong = 0;
    for (size_t i = 0; i < kElements; ++i) wrong += mine[i] != 2.0f * (i % 1000) + 1.0f;
    EXPECT_EQ(wrong, 0u);
    co_return sent.is_ok() ? received : sent;
  });
}

TEST_P(ConformanceTest, NarrowElementsAreReducedIntoAWiderAccumulator) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kElements = 200003;
    const Reduction sum{add_shorts_to_ints, 2, 4};
    std::vector<int32_t> accumulator(kElements, 1000000);
    std::vector<int16_t> source(kElements);
    for (size_t i = 0; i < kElements; ++i) source[i] = static_cast<int16_t>(i % 30000);
    // An odd number of bytes before it, so that frames are not aligned by chance.
    std::vector<Task> odd;
    odd.push_back(send_pattern(link, Tag{1, 0, 0}, 3, 9));
    odd.push_back(receive_pattern(link, Tag{1, 0, 0}, 3, 9));
    Transfer out, in;
    link.receive(in, Tag{2, 0, 0}, accumulator.data(), kElements * 2, &sum);
    AllTasks all(odd);
    Status first = co_await all;
    link.send(out, Tag{2, 0, 0}, source.data(), kElements * 2, 0);
    Status sent = co_await out;
    Status received = co_await in;
    size_t wrong = 0;
    for (size_t i = 0; i < kElements; ++i) {
      wrong += accumulator[i] != 1000000 + static_cast<int32_t>(i % 30000);
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_TRUE(first.is_ok());
    co_return sent.is_ok() ? received : sent;
  });
}

TEST_P(ConformanceTest, FramesThatComeBeforeTheirReceiveAreKept) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kElements = 250000;
    std::vector<float> values(kElements, 1.5f);
    if (rank.rank == 0) {
      Transfer empty, plain, reduced;
      link.send(empty, Tag{1, 0, 0}, nullptr, 0, 0);
      link.send(plain, Tag{1, 0, 1}, values.data(), kElements * 4, 0);
      link.send(reduced, Tag{1, 0, 2}, values.data(), kElements * 4, 0);
      Status a = co_await empty;
      Status b = co_await plain;
      Status c = co_await reduced;
      co_return !a.is_ok() ? a : !b.is_ok() ? b : c;
    }
    const uint64_t frames = 1 + 2 * ((kElements * 4 + (128 << 10) - 1) / (128 << 10));
    while (rank.mesh.counters().unexpected_frames < frames) {
      NextTurn next{rank.loop};
      co_await next;
    }
    const Reduction sum{add_floats, 4, 4};
    std::vector<float> copy(kElements), total(kElements, 2.0f);
    Transfer empty, plain, reduced;
    link.receive(reduced, Tag{1, 0, 2}, total.data(), kElements * 4, &sum);
    link.receive(plain, Tag{1, 0, 1}, copy.data(), kElements * 4);
    link.receive(empty, Tag{1, 0, 0}, nullptr, 0);
    Status a = co_await empty;
    Status b = co_await plain;
    Status c = co_await reduced;
    EXPECT_TRUE(copy == values);
    EXPECT_TRUE(total == std::vector<float>(kElements, 3.5f));
    co_return !a.is_ok() ? a : !b.is_ok() ? b : c;
  });
}

TEST_P(ConformanceTest, AnUrgentMessageOvertakesALongOneUnderWay) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kLong = 64 << 20;
    std::vector<std::byte> bytes(kLong);
    uint32_t urgent = 42;
    Transfer slow, fast;
    if (rank.rank == 0) {
      Task met = meet(rank, 1);
      Status status = co_await std::move(met);
      link.send(slow, Tag{1, 0, 0}, bytes.data(), kLong, 0);
      link.send(fast, Tag{1, 0, 1}, &urgent, sizeof urgent, 1);
      Status sent = co_await fast;
      EXPECT_FALSE(slow.done());
      Status sent_slow = co_await slow;
      co_return !status.is_ok() ? status : sent.is_ok() ? sent_slow : sent;
    }
    urgent = 0;
    link.receive(slow, Tag{1, 0, 0}, bytes.data(), kLong);
    link.receive(fast, Tag{1, 0, 1}, &urgent, sizeof urgent);
    Task met = meet(rank, 0);
    Status status = co_await std::move(met);
    Status received = co_await fast;
    EXPECT_EQ(urgent, 42u);
    EXPECT_FALSE(slow.done());
    Status received_slow = co_await slow;
    co_return !status.is_ok() ? status : received.is_ok() ? received_slow : received;
  });
}

TEST_P(ConformanceTest, ControlMessagesArriveInOrderAndWhole) {
  constexpr int kMessages = 1500;
  const auto text = [](int i) {
    return std::to_string(i) + std::string(i % 100 == 99 ? 300000 : i % 50, 'x');
  };
  expect_world_ok(2, settings(), [text](RankContext& rank) -> Task {
    for (int i = 0; i < kMessages; ++i) rank.send_text(1 - rank.rank, text(i));
    while (rank.listener.controls.size() < kMessages) {
      auto news = rank.listener.news();
      co_await news;
    }
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(rank.listener.controls[i].from, 1 - rank.rank);
      if (rank.listener.controls[i].text != text(i)) {
        ADD_FAILURE() << "message " << i;
        break;
      }
    }
    EXPECT_EQ(rank.mesh.counters().control_messages_received, uint64_t{kMessages});
    co_return Status::ok();
  });
}

TEST_P(ConformanceTest, ControlMessagesGoBeforeQueuedData) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    constexpr size_t kLong = 32 << 20;
    std::vector<std::byte> bytes(kLong);
    Transfer slow;
    if (rank.rank == 0) {
      Task met = meet(rank, 1);
      Status status = co_await std::move(met);
      link.send(slow, Tag{1, 0, 0}, bytes.data(), kLong, 100);
      rank.send_text(1, "first");
      Status sent = co_await slow;
      co_return status.is_ok() ? sent : status;
    }
    link.receive(slow, Tag{1, 0, 0}, bytes.data(), kLong);
    Task met = meet(rank, 0);
    Status status = co_await std::move(met);
    while (rank.listener.controls.empty()) {
      auto news = rank.listener.news();
      co_await news;
    }
    EXPECT_FALSE(slow.done());
    Status received = co_await slow;
    co_return status.is_ok() ? received : status;
  });
}

TEST_P(ConformanceTest, FloodsInBothDirectionsAtOnceDoNotBlockEachOther) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    std::vector<Task> tasks;
    for (uint32_t i = 0; i < 24; ++i) {
      const size_t bytes = (i % 3 == 0 ? 1u << 20 : 5000u) + i;
      const Tag tag{i, 1, 2};
      tasks.push_back(send_pattern(link, tag, bytes, i, static_cast<int32_t>(i % 4)));
      tasks.push_back(receive_pattern(link, tag, bytes, i));
    }
    AllTasks all(tasks);
    co_return co_await all;
  });
}

// Nobody but somebody between the ranks sends one, so no rank may be taken for lost.
TEST_P(ConformanceTest, AMessageOfAnotherSizeThanItsReceiveEndsTheLink) {
  for (const bool comes_first : {false, true}) {
    expect_world_ok(2, settings(), [comes_first](RankContext& rank) -> Task {
      Link& link = rank.mesh.link(1 - rank.rank);
      std::vector<std::byte> bytes(1 << 16);
      Transfer transfer, never;
      if (rank.rank == 0) {
        link.send(transfer, Tag{1, 0, 0}, bytes.data(), bytes.size(), 0);
        link.receive(never, Tag{2, 0, 0}, bytes.data(), 1);
        Status ended = co_await never;
        EXPECT_EQ(ended.code(), StatusCode::kAborted);
        Status sent = co_await transfer;
        co_return Status::ok();
      }
      link.receive(never, Tag{2, 0, 0}, bytes.data(), 1);
      while (comes_first && rank.mesh.counters().unexpected_frames == 0) {
        NextTurn next{rank.loop};
        co_await next;
      }
      link.receive(transfer, Tag{1, 0, 0}, bytes.data(), 1000);
      Status ended = co_await transfer;
      EXPECT_EQ(ended.code(), StatusCode::kAborted);
      EXPECT_NE(ended.message().find("65536 bytes"), std::string::npos) << ended.message();
      Status other = co_await never;
      EXPECT_EQ(other.message(), ended.message());
      co_return Status::ok();
    });
  }
}

TEST_P(ConformanceTest, ATagMayBeUsedAgainOnceReceived) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    for (uint32_t i = 0; i < 200; ++i) {
      Task met = meet(rank, 1 - rank.rank);
      Status status = co_await std::move(met);
      if (!status.is_ok()) co_return status;
    }
    co_return Status::ok();
  });
}

TEST_P(ConformanceTest, TwoReceivesUnderOneTagAreRefused) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    char a = 0, b = 0, value = 7;
    Transfer first, second, out;
    link.receive(first, Tag{1, 0, 0}, &a, 1);
    link.receive(second, Tag{1, 0, 0}, &b, 1);
    Status refused = co_await second;
    EXPECT_EQ(refused.code(), StatusCode::kInternal);
    link.send(out, Tag{1, 0, 0}, &value, 1, 0);
    Status sent = co_await out;
    Status received = co_await first;
    EXPECT_EQ(a, 7);
    co_return sent.is_ok() ? received : sent;
  });
}

Task exchange_with_all(RankContext& rank, size_t bytes) {
  std::vector<Task> tasks;
  for (int peer = 0; peer < rank.size; ++peer) {
    if (peer == rank.rank) continue;
    Link& link = rank.mesh.link(peer);
    tasks.push_back(send_pattern(link, Tag{1, 0, 0}, bytes, rank.rank));
    tasks.push_back(receive_pattern(link, Tag{1, 0, 0}, bytes, peer));
  }
  AllTasks all(tasks);
  co_return co_await all;
}

TEST_P(ConformanceTest, EveryRankReachesEveryOtherAtAnySize) {
  for (int size = 1; size <= world_maker.largest; ++size) {
    SCOPED_TRACE(size);
    expect_world_ok(size, settings(),
                    [](RankContext& rank) { return exchange_with_all(rank, 150000); });
  }
}

// The side of a link that does not ask for it.
TEST_P(ConformanceTest, EitherRankMayBeTheOnlyOneToUseALink) {
  for (int speaker : {0, 1}) {
    expect_world_ok(2, settings(), [speaker](RankContext& rank) -> Task {
      if (rank.rank == speaker) {
        rank.send_text(1 - speaker, "hello");
      }
      while (rank.rank != speaker && rank.listener.controls.empty()) {
        auto news = rank.listener.news();
        co_await news;
      }
      co_return Status::ok();
    });
  }
}

TEST_P(ConformanceTest, GoodbyeEndsTransfersButNotMessagesThatHaveArrived) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    if (rank.rank == 1) {
      Task sent = send_pattern(link, Tag{1, 0, 0}, 400000, 5);
      co_return co_await std::move(sent);  // then says goodbye
    }
    std::vector<std::byte> bytes(100);
    Transfer never, after;
    link.receive(never, Tag{2, 0, 0}, bytes.data(), bytes.size());
    Status status = co_await never;
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("rank 1 "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("has shut down"), std::string::npos) << status.message();
    while (!rank.mesh.has_left(1)) {
      NextTurn next{rank.loop};
      co_await next;
    }
    EXPECT_TRUE(rank.listener.lost.empty());
    link.send(after, Tag{3, 0, 0}, bytes.data(), bytes.size(), 0);
    Status refused = co_await after;
    EXPECT_EQ(refused.code(), StatusCode::kAborted);
    Task kept = receive_pattern(link, Tag{1, 0, 0}, 400000, 5);
    co_return co_await std::move(kept);
  });
}

TEST_P(ConformanceTest, AllThatIsQueuedLeavesBeforeTheGoodbye) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    constexpr int kMessages = 40;
    if (rank.rank == 0) {
      for (int i = 0; i < kMessages; ++i) rank.send_text(1, std::string(100000, 'a'));
      co_return Status::ok();
    }
    while (!rank.mesh.has_left(0) && rank.listener.lost.empty()) {
      NextTurn next{rank.loop};
      co_await next;
    }
    EXPECT_EQ(rank.listener.controls.size(), static_cast<size_t>(kMessages));
    EXPECT_TRUE(rank.listener.lost.empty());
    co_return Status::ok();
  });
}

TEST_P(ConformanceTest, FailAllEndsEveryTransferWithItsReason) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Link& link = rank.mesh.link(1 - rank.rank);
    Task met = meet(rank, 1 - rank.rank);
    Status status = co_await std::move(met);
    std::vector<std::byte> bytes(50 << 20);
    Transfer in, out;
    link.receive(in, Tag{1, 0, 0}, bytes.data(), 64);
    if (rank.rank == 0) {
      link.send(out, Tag{2, 0, 0}, bytes.data(), bytes.size(), 0);
      rank.mesh.fail_all(Status::timed_out("enough"));
      Status a = co_await in;
      Status b = co_await out;
      EXPECT_EQ(a.code(), StatusCode::kTimedOut);
      EXPECT_EQ(b.message(), "enough");
      EXPECT_TRUE(rank.listener.lost.empty());
    } else {
      Status a = co_await in;
      // Begun only now, since before the end it might have been received whole.
      link.send(out, Tag{2, 0, 0}, bytes.data(), bytes.size(), 0);
      Status b = co_await out;
      EXPECT_EQ(a.code(), StatusCode::kAborted);
      EXPECT_NE(a.message().find("rank 0 on "), std::string::npos) << a.message();
      EXPECT_EQ(b.code(), StatusCode::kAborted);
      while (rank.listener.lost.empty()) {
        auto news = rank.listener.news();
        co_await news;
      }
      EXPECT_EQ(rank.listener.lost.size(), 1u);
    }
    co_return status;
  });
}

TEST_P(ConformanceTest, CountersTellWhatWasMoved) {
  expect_world_ok(2, settings(), [](RankContext& rank) -> Task {
    Task task = exchange_with_all(rank, 100000);
    Status status = co_await std::move(task);
    const Mesh::Counters counters = rank.mesh.counters();
    const std::string transport = GetParam().transport;
    EXPECT_EQ(counters.data_bytes_sent_shm, transport == "shm" ? 100000u : 0u);
    EXPECT_EQ(counters.data_bytes_sent_tcp, transport == "tcp" ? 100000u : 0u);
    EXPECT_EQ(counters.data_bytes_sent_mpi, transport == "mpi" ? 100000u : 0u);
    EXPECT_EQ(counters.frames_sent, 1u);
    EXPECT_GE(counters.frames_received, 1u);  // and the peer's goodbye, if it was quick
    co_return status;
  });
}

}  // namespace
}  // namespace perseus
