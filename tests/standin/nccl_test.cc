// Tests that the stand-in for NCCL does what NCCL documents, and finds ranks that do not agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ranks.h"

namespace perseus::standin {
namespace {

class NcclStandIn : public testing::TestWithParam<int> {
 protected:
  // The ranks are forked from a process without threads.
  static void SetUpTestSuite() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

const auto kWell = testing::ExitedWithCode(0);

constexpr size_t kCount = 1001;  // not a multiple of the ranks

template <typename Element>
std::vector<Element> values_of(int rank, size_t count) {
  std::vector<Element> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<Element>((rank + 2) * (i % 7) + i % 3);
  return values;
}

template <typename Element>
void expect_reduced(Rank& here, int type, int op) {
  std::vector<double> expected;
  for (int rank = 0; rank < here.ranks; ++rank) {
    const auto theirs = values_of<Element>(rank, kCount);
    if (rank == 0) {
      expected.assign(theirs.begin(), theirs.end());
      continue;
    }
    for (size_t i = 0; i < kCount; ++i) {
      double& one = expected[i];
      const auto other = static_cast<double>(theirs[i]);
      one = op == kNcclSum       ? one + other
            : op == kNcclProduct ? one * other
            : op == kNcclMax     ? std::max(one, other)
                                 : std::min(one, other);
    }
  }
  Element* buffer = here.buffer(values_of<Element>(here.rank, kCount));
  require(here.nccl.all_reduce(buffer, buffer, kCount, type, op, here.comm, here.stream),
          "ncclAllReduce");
  const auto found = here.values(buffer, kCount);
  for (size_t i = 0; i < kCount; ++i) {
    // Integers wrap.
    const auto wanted = std::is_floating_point_v<Element>
                            ? static_cast<Element>(expected[i])
                            : static_cast<Element>(static_cast<int64_t>(expected[i]));
    expect(found[i] == wanted, "the sum");
  }
}

void reduce_all_types(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  for (const int op : {kNcclSum, kNcclProduct, kNcclMax, kNcclMin}) {
    expect_reduced<int8_t>(here, kNcclInt8, op);
    expect_reduced<uint8_t>(here, kNcclUint8, op);
    expect_reduced<int32_t>(here, kNcclInt32, op);
    expect_reduced<int64_t>(here, kNcclInt64, op);
    expect_reduced<float>(here, kNcclFloat32, op);
    expect_reduced<double>(here, kNcclFloat64, op);
  }
  require(here.nccl.finalize(here.comm), "ncclCommFinalize");
  require(here.nccl.destroy(here.comm), "ncclCommDestroy");
}

// 1.5, 2.5, 3.5 ... in both 16-bit formats.
void reduce_16_bit_floats(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  const std::vector<uint16_t> bfloat16 = {0x3fc0, 0x4020, 0x4060, 0x4090};
  const std::vector<uint16_t> float16 = {0x3e00, 0x4100, 0x4300, 0x4480};
  // 1.5 + 2.5 = 4, and 1.5 + 2.5 + 3.5 + 4.5 = 12.
  const bool is_two = here.ranks == 2;
  const auto rank = static_cast<size_t>(here.rank);
  uint16_t* a = here.buffer<uint16_t>({bfloat16[rank], 0x0000});
  uint16_t* b = here.buffer<uint16_t>({float16[rank], 0x0001});
  require(here.nccl.all_reduce(a, a, 2, kNcclBfloat16, kNcclSum, here.comm, here.stream), "");
  require(here.nccl.all_reduce(b, b, 2, kNcclFloat16, kNcclSum, here.comm, here.stream), "");
  expect(here.values(a, 2)[0] == (is_two ? 0x4080 : 0x4140), "the sum in bfloat16");
  expect(here.values(b, 2)[0] == (is_two ? 0x4400 : 0x4a00), "the sum in float16");
  expect(here.values(b, 2)[1] == here.ranks, "the sum of the smallest in float16");
  require(here.nccl.all_reduce(b, b, 1, kNcclFloat16, kNcclMax, here.comm, here.stream), "");
}

TEST_P(NcclStandIn, Reduces) {
  EXPECT_EXIT(in_ranks(GetParam(), reduce_all_types), kWell, "");
  EXPECT_EXIT(in_ranks(GetParam(), reduce_16_bit_floats), kWell, "");
}

void gather_scatter_and_broadcast(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  const auto ranks = static_cast<size_t>(here.ranks);
  const auto rank = static_cast<size_t>(here.rank);
  // In place and not.
  const auto mine = values_of<int32_t>(here.rank, kCount);
  int32_t* source = here.buffer(mine);
  int32_t* all = here.buffer(std::vector<int32_t>(ranks * kCount, -1));
  require(here.nccl.all_gather(source, all, kCount, kNcclInt32, here.comm, here.stream), "");
  std::vector<int32_t> expected;
  for (int peer = 0; peer < here.ranks; ++peer) {
    const auto theirs = values_of<int32_t>(peer, kCount);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  expect(here.values(all, ranks * kCount) == expected, "what was gathered");
  int32_t* own = all + rank * kCount;
  require(here.nccl.all_gather(own, all, kCount, kNcclInt32, here.comm, here.stream), "");
  expect(here.values(all, ranks * kCount) == expected, "what was gathered in place");
  require(here.nccl.reduce_scatter(all, own, kCount, kNcclInt32, kNcclSum, here.comm, here.stream),
          "");
  for (size_t i = 0; i < kCount; ++i) {
    expected[rank * kCount + i] *= here.ranks;
  }
  expect(here.values(all, ranks * kCount) == expected, "what was scattered in place");
  for (int root = 0; root < here.ranks; ++root) {
    int32_t* target = here.buffer(std::vector<int32_t>(kCount, -1));
    require(here.nccl.broadcast(source, target, kCount, kNcclInt32, root, here.comm, here.stream),
            "");
    expect(here.values(target, kCount) == values_of<int32_t>(root, kCount), "what was broadcast");
  }
}

TEST_P(NcclStandIn, GathersScattersAndBroadcasts) {
  EXPECT_EXIT(in_ranks(GetParam(), gather_scatter_and_broadcast), kWell, "");
}

void exchange_with_all(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  // More than a socket takes at once.
  constexpr size_t kMany = 1 << 20;
  const auto ranks = static_cast<size_t>(here.ranks);
  std::vector<int32_t> mine(ranks * kMany);
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i] = here.rank * 1000 + static_cast<int>(i / kMany);
  }
  int32_t* source = here.buffer(mine);
  int32_t* target = here.buffer(std::vector<int32_t>(ranks * kMany));
  int32_t* sum = here.buffer<int32_t>({1, 2});
  require(here.nccl.group_start(), "ncclGroupStart");
  for (int peer = 0; peer < here.ranks; ++peer) {
    const size_t at = static_cast<size_t>(peer) * kMany;
    require(here.nccl.send(source + at, kMany, kNcclInt32, peer, here.comm, here.stream), "");
    require(here.nccl.receive(target + at, kMany, kNcclInt32, peer, here.comm, here.stream), "");
  }
  for (int i = 0; i < 2; ++i) {
    require(here.nccl.all_reduce(sum + i, sum + i, 1, kNcclInt32, kNcclSum, here.comm, here.stream),
            "");
  }
  require(here.nccl.group_end(), "ncclGroupEnd");
  const auto found = here.values(target, ranks * kMany);
  for (size_t i = 0; i < found.size(); ++i) {
    expect(found[i] == static_cast<int>(i / kMany) * 1000 + here.rank, "what was exchanged");
  }
  expect(here.values(sum, 2) == std::vector<int32_t>{here.ranks, 2 * here.ranks}, "the sums");
  // One way, without a group; ranks above 1 have no part in it.
  if (here.rank == 0) {
    require(here.nccl.send(source, 1, kNcclInt32, 1, here.comm, here.stream), "");
  } else if (here.rank == 1) {
    require(here.nccl.receive(target, 1, kNcclInt32, 0, here.comm, here.stream), "");
  }
  expect(
      here.values(here.rank == 1 ? target : source, 1)[0] == (here.rank > 1 ? here.rank * 1000 : 0),
      "what was sent");
  require(here.nccl.group_end(), "ncclGroupEnd without a start", 5);
}

TEST_P(NcclStandIn, ExchangesMessages) {
  EXPECT_EXIT(in_ranks(GetParam(), exchange_with_all), kWell, "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclStandIn, testing::Values(2, 4));

void differ_in_count(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  float* buffer = here.buffer<float>({1, 2});
  const auto count = static_cast<size_t>(here.rank) + 1;
  require(
      here.nccl.all_reduce(buffer, buffer, count, kNcclFloat32, kNcclSum, here.comm, here.stream),
      "");
  here.wait();
}

void differ_in_order(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  float* buffer = here.buffer<float>({1, 2, 3, 4});
  const auto reduce = [&] {
    here.nccl.all_reduce(buffer, buffer, 2, kNcclFloat32, kNcclSum, here.comm, here.stream);
  };
  const auto broadcast = [&] {
    here.nccl.broadcast(buffer, buffer, 2, kNcclFloat32, 1, here.comm, here.stream);
  };
  here.rank == 0 ? reduce() : broadcast();
  here.rank == 0 ? broadcast() : reduce();
  here.wait();
}

void both_send_first(Rank& here) {
  require(here.connect(), "ncclCommInitRankConfig");
  float* buffer = here.buffer<float>({1, 2});
  here.nccl.send(buffer, 1, kNcclFloat32, 1 - here.rank, here.comm, here.stream);
  here.nccl.receive(buffer + 1, 1, kNcclFloat32, 1 - here.rank, here.comm, here.stream);
  here.wait();
}

class NcclRules : public testing::Test {
 protected:
  static void SetUpTestSuite() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(NcclRules, RanksLaunchTheSameInTheSameOrder) {
  const auto badly = testing::ExitedWithCode(1);
  EXPECT_EXIT(in_ranks(2, differ_in_count), badly,
              "rank . launched ncclAllReduce of . float32 sum, rank . launched ncclAllReduce of .");
  EXPECT_EXIT(in_ranks(2, differ_in_order), badly, "rank . launched nccl.* rank . launched nccl");
  EXPECT_EXIT(in_ranks(2, both_send_first), badly,
              "rank . launched messages .->. 1 float32, rank . launched messages .->.");
}

TEST_F(NcclRules, RanksHaveADeviceEach) {
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_SHARED", "1", 1);
        in_ranks(2, [](Rank& here) {
          require(here.connect(), "ncclCommInitRankConfig", 5);
          here.cuda.make_current(here.rank);
          require(here.connect(1), "ncclCommInitRankConfig");
        });
      },
      kWell, "");
}

TEST_F(NcclRules, CollectivesAreOrderedLikeOtherWork) {
  EXPECT_EXIT(in_ranks(1,
                       [](Rank& here) {
                         require(here.connect(), "ncclCommInitRankConfig");
                         float* buffer = here.buffer<float>({1});
                         here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm,
                                              here.stream);
                         here.cuda.fill(reinterpret_cast<CuPointer>(buffer), 0, 4, nullptr);
                       }),
              testing::ExitedWithCode(1), "ncclAllReduce .* and cuMemsetD8Async writes 4 bytes");
}

TEST_F(NcclRules, ConnectsInTheBackground) {
  EXPECT_EXIT(in_ranks(2,
                       [](Rank& here) {
                         // Rank 1 does not come to the first meeting.
                         float* buffer = here.buffer<float>({1});
                         if (here.rank == 0) {
                           require(here.connect(0, 0), "ncclCommInitRankConfig", kNcclInProgress);
                           require(here.error(), "ncclCommGetAsyncError", kNcclInProgress);
                           require(here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum,
                                                        here.comm, here.stream),
                                   "ncclAllReduce", 4);
                           require(here.nccl.abort(here.comm), "ncclCommAbort");
                         }
                         here.connect(1, 0);
                         while (here.error() == kNcclInProgress) std::this_thread::yield();
                         require(here.error(), "ncclCommGetAsyncError");
                         here.cuda.hold(here.stream);
                         require(here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum,
                                                      here.comm, here.stream),
                                 "ncclAllReduce");
                         require(here.nccl.finalize(here.comm), "ncclCommFinalize", 7);
                         require(here.error(), "ncclCommGetAsyncError", 7);
                         here.cuda.release(here.stream);
                         while (here.error() == kNcclInProgress) std::this_thread::yield();
                         require(here.nccl.destroy(here.comm), "ncclCommDestroy");
                         require(here.nccl.destroy(here.comm), "ncclCommDestroy", 4);
                         expect(here.values(buffer, 1)[0] == 2, "the sum");
                       }),
              kWell, "");
}

// The collective ends, the stream goes on, and another communicator works.
void abort_and_go_on(Rank& here) {
  require(here.nccl.abort(here.comm), "ncclCommAbort");
  here.wait();
  require(here.connect(1), "ncclCommInitRankConfig");
  float* buffer = here.buffer<float>({1});
  require(here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm, here.stream),
          "");
  expect(here.values(buffer, 1)[0] == static_cast<float>(here.ranks), "the sum");
}

TEST_F(NcclRules, AbortEndsWhatHangs) {
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_COLLECTIVE", "2=hang", 1);
        in_ranks(2, [](Rank& here) {
          require(here.connect(), "ncclCommInitRankConfig");
          float* buffer = here.buffer<float>({1, 2});
          for (int i = 0; i < 3; ++i) {
            here.nccl.all_reduce(buffer, buffer, 2, kNcclFloat32, kNcclSum, here.comm, here.stream);
          }
          abort_and_go_on(here);
        });
      },
      kWell, "");
}

TEST_F(NcclRules, TellsOfAnErrorWithinACollective) {
  EXPECT_EXIT(in_ranks(2,
                       [](Rank& here) {
                         require(here.connect(), "ncclCommInitRankConfig");
                         float* buffer = here.buffer<float>({1});
                         if (here.rank == 1) here.cuda.fail_collective(1, 3);
                         here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm,
                                              here.stream);
                         // Rank 0 hangs until rank 1 has left.
                         while (here.error() == kNcclSuccess) std::this_thread::yield();
                         require(here.error(), "ncclCommGetAsyncError", here.rank == 1 ? 3 : 6);
                         abort_and_go_on(here);
                       }),
              kWell, "");
}

TEST_F(NcclRules, TellsOfAPeerThatDied) {
  EXPECT_EXIT(in_ranks(3,
                       [](Rank& here) {
                         require(here.connect(), "ncclCommInitRankConfig");
                         if (here.rank == 2) _exit(0);
                         float* buffer = here.buffer<float>({1});
                         here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm,
                                              here.stream);
                         while (here.error() == kNcclSuccess) std::this_thread::yield();
                         require(here.error(), "ncclCommGetAsyncError", 6);
                         here.ranks = 2;
                         abort_and_go_on(here);
                       }),
              kWell, "");
}

TEST_F(NcclRules, AProcessMayHaveSeveralRanks) {
  EXPECT_EXIT(in_ranks(1,
                       [](Rank& here) {
                         NcclHandle comms[2];
                         CuStream streams[2];
                         CuPointer buffers[2];
                         NcclConfig config = here.config();
                         require(here.nccl.group_start(), "ncclGroupStart");
                         for (int i = 0; i < 2; ++i) {
                           here.cuda.make_current(i);
                           streams[i] = here.cuda.new_stream();
                           buffers[i] = here.cuda.device_memory(1);
                           here.cuda.fill(buffers[i], 5, 1, streams[i]);
                           require(here.nccl.init_rank(&comms[i], 2, here.ids[0], i, &config), "");
                         }
                         require(here.nccl.group_end(), "ncclGroupEnd");
                         for (int i = 0; i < 2; ++i) {
                           void* buffer = reinterpret_cast<void*>(buffers[i]);
                           require(here.nccl.all_reduce(buffer, buffer, 1, kNcclInt8, kNcclSum,
                                                        comms[i], streams[i]),
                                   "ncclAllReduce");
                         }
                         here.cuda.synchronize();
                         expect(*reinterpret_cast<char*>(buffers[1]) == 10, "the sum");
                       }),
              kWell, "");
}

TEST_F(NcclRules, ADeviceMayRunOneCollectiveAtATime) {
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_ONE_COLLECTIVE", "1", 1);
        in_ranks(2, [](Rank& here) {
          require(here.connect(0), "ncclCommInitRankConfig");
          const NcclHandle first = here.comm;
          require(here.connect(1), "ncclCommInitRankConfig");
          float* buffer = here.buffer<float>({1, 1});
          CuEvent event = here.cuda.new_event();
          const auto launch_second = [&] {
            CuStream other = here.cuda.new_stream();
            here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm, other);
            here.cuda.record_event(event, other);
          };
          const auto launch_first = [&] {
            here.nccl.all_reduce(buffer + 1, buffer + 1, 1, kNcclFloat32, kNcclSum, first,
                                 here.stream);
          };
          here.rank == 0 ? launch_first() : launch_second();
          here.rank == 0 ? launch_second() : launch_first();
          // Rank 1 may see it done once rank 0 has aborted.
          // Without the setting it is done in less than a millisecond.
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
          while (here.rank == 0 && std::chrono::steady_clock::now() < end) {
            expect(here.cuda.query_event(event) == kCuNotReady, "both hang");
          }
          require(here.nccl.abort(first), "ncclCommAbort");
          here.cuda.wait_for(event);
        });
      },
      kWell, "");
}

TEST_F(NcclRules, FailsWhereItIsTold) {
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_FAIL", "ncclAllReduce:1=1", 1);
        in_ranks(1, [](Rank& here) {
          require(here.connect(), "ncclCommInitRankConfig");
          float* buffer = here.buffer<float>({1});
          const auto reduce = [&] {
            return here.nccl.all_reduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, here.comm,
                                        here.stream);
          };
          require(reduce(), "ncclAllReduce", 1);
          require(reduce(), "ncclAllReduce");
          require(here.nccl.destroy(here.comm), "ncclCommDestroy");
          require(reduce(), "ncclAllReduce", 4);
        });
      },
      kWell, "");
}

}  // namespace
}  // namespace perseus::standin
