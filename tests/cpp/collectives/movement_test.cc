// Collectives that move bytes without changing them.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "collectives/loopback.h"
#include "reference/pattern.h"

namespace perseus {
namespace {

void expect_success(LoopbackWorld& world, std::vector<Task> tasks) {
  for (const Status& status : world.run(std::move(tasks))) {
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  EXPECT_EQ(world.violations(), std::vector<std::string>());
}

const std::vector<std::vector<int>> kWorlds = {{1},
                                               {2},
                                               {3},
                                               {4},
                                               {5},
                                               {6},
                                               {7},
                                               {8},
                                               {2, 2},
                                               {3, 1},
                                               {2, 2, 2},
                                               {9},
                                               {1, 1, 1, 1, 1, 1, 1, 1, 1}};

TEST(Broadcast, GivesEveryRankTheRootsBytes) {
  for (const auto& hosts : kWorlds) {
    LoopbackWorld world(hosts, 1);
    uint64_t operation = 0;
    for (size_t size : {0, 1, 5, 1000, 100003, 1200007}) {
      if (size > 200000 && world.size() > 4) continue;
      for (int root : {0, world.size() / 2, world.size() - 1}) {
        std::vector<Bytes> data;
        std::vector<Task> tasks;
        for (int rank = 0; rank < world.size(); ++rank) data.push_back(pattern(size, rank));
        ++operation;
        for (int rank = 0; rank < world.size(); ++rank) {
          tasks.push_back(broadcast(world.group(rank), world.options(operation), data[rank].data(),
                                    size, root));
        }
        expect_success(world, std::move(tasks));
        for (const Bytes& received : data) ASSERT_TRUE(received == pattern(size, root));
      }
    }
  }
}

TEST(Broadcast, EntersEachHostOnce) {
  constexpr size_t kSize = 300000;
  LoopbackWorld world({3, 3, 3}, 2);
  std::vector<Bytes> data(9, Bytes(kSize));
  std::vector<Task> tasks;
  for (int rank = 0; rank < 9; ++rank) {
    tasks.push_back(broadcast(world.group(rank), world.options(1), data[rank].data(), kSize, 4));
  }
  expect_success(world, std::move(tasks));
  EXPECT_EQ(world.bytes_between_hosts(), 2 * kSize);
}

TEST(Allgather, JoinsBlocksOfDifferentSizesInOrder) {
  for (const auto& hosts : kWorlds) {
    LoopbackWorld world(hosts, 3);
    uint64_t operation = 0;
    for (size_t scale : {0, 1, 999, 20011}) {
      for (bool in_place : {false, true}) {
        std::vector<uint64_t> bytes_of;
        for (int rank = 0; rank < world.size(); ++rank)
          bytes_of.push_back(scale * ((rank * 2) % 5));
        Bytes expected;
        std::vector<Bytes> in, out;
        std::vector<size_t> offsets;
        for (int rank = 0; rank < world.size(); ++rank) {
          in.push_back(pattern(bytes_of[rank], rank));
          offsets.push_back(expected.size());
          expected.insert(expected.end(), in[rank].begin(), in[rank].end());
        }
        out.assign(world.size(), Bytes(expected.size()));
        std::vector<Task> tasks;
        ++operation;
        for (int rank = 0; rank < world.size(); ++rank) {
          uint8_t* own = out[rank].data() + offsets[rank];
          if (in_place) std::copy(in[rank].begin(), in[rank].end(), own);
          tasks.push_back(allgather(world.group(rank), world.options(operation),
                                    in_place ? own : in[rank].data(), out[rank].data(), bytes_of));
        }
        expect_success(world, std::move(tasks));
        for (const Bytes& gathered : out) ASSERT_TRUE(gathered == expected);
      }
    }
  }
}

TEST(Alltoall, ExchangesPartsOfDifferentSizes) {
  for (const auto& hosts : kWorlds) {
    LoopbackWorld world(hosts, 4);
    const int ranks = world.size();
    uint64_t operation = 0;
    for (size_t scale : {0, 1, 1009, 30011}) {
      const auto size_between = [&](int from, int to) { return scale * ((from + 2 * to) % 4); };
      std::vector<std::vector<uint64_t>> send_bytes(ranks), receive_bytes(ranks);
      std::vector<Bytes> in(ranks), expected(ranks), out(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int peer = 0; peer < ranks; ++peer) {
          send_bytes[rank].push_back(size_between(rank, peer));
          receive_bytes[rank].push_back(size_between(peer, rank));
          const Bytes outgoing = pattern(size_between(rank, peer), rank, peer);
          in[rank].insert(in[rank].end(), outgoing.begin(), outgoing.end());
          const Bytes incoming = pattern(size_between(peer, rank), peer, rank);
          expected[rank].insert(expected[rank].end(), incoming.begin(), incoming.end());
        }
        out[rank].resize(expected[rank].size());
      }
      ++operation;
      std::vector<Task> tasks;
      for (int rank = 0; rank < ranks; ++rank) {
        tasks.push_back(alltoall(world.group(rank), world.options(operation), in[rank].data(),
                                 out[rank].data(), send_bytes[rank], receive_bytes[rank]));
      }
      expect_success(world, std::move(tasks));
      for (int rank = 0; rank < ranks; ++rank) ASSERT_TRUE(out[rank] == expected[rank]);
    }
  }
}

TEST(Movement, EndsOnEveryRankWithTheErrorOfAFailedLink) {
  constexpr size_t kSize = 200000;
  constexpr int kRanks = 4;
  const std::vector<uint64_t> parts(kRanks, kSize / kRanks);
  for (int kind = 0; kind < 3; ++kind) {
    for (int messages : {0, 2}) {
      LoopbackWorld world({kRanks}, 5);
      std::vector<Bytes> in(kRanks, Bytes(kSize)), out(kRanks, Bytes(kSize));
      std::vector<Task> tasks;
      for (int rank = 0; rank < kRanks; ++rank) {
        const Group& group = world.group(rank);
        const CollectiveOptions options = world.options(1);
        if (kind == 0) tasks.push_back(broadcast(group, options, in[rank].data(), kSize, 0));
        if (kind == 1) {
          tasks.push_back(allgather(group, options, in[rank].data(), out[rank].data(), parts));
        }
        if (kind == 2) {
          tasks.push_back(
              alltoall(group, options, in[rank].data(), out[rank].data(), parts, parts));
        }
      }
      world.fail_after(messages, Status::aborted("rank 1 died"));
      int failed = 0;
      for (const Status& status : world.run(std::move(tasks))) {
        // The root of a broadcast, or a rank that has its data already, may be done by then.
        if (status.is_ok()) continue;
        ++failed;
        EXPECT_EQ(status.message(), "rank 1 died");
      }
      EXPECT_GE(failed, messages == 0 ? kRanks : 1) << "kind " << kind;
    }
  }
}

}  // namespace
}  // namespace perseus
