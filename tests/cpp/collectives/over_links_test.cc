// Runs every collective over the real links of each transport, at every number of ranks. Ranks use
// a collective to check that all have the same bits, so they may be threads or processes.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer_pool.h"
#include "collectives/collective.h"
#include "reference/pattern.h"
#include "reference/reduced.h"
#include "sanitizers.h"
#include "transport/thread_world.h"
#include "transport/transports_under_test.h"

namespace perseus {
namespace {

// One rank's side of the suite.
struct Suite {
  Suite(RankContext& context, int ranks_per_host, int ranks_per_cache = 0) {
    std::vector<Link*> links;
    std::vector<int> host_of, cache_of;
    for (int peer = 0; peer < context.size; ++peer) {
      links.push_back(peer == context.rank ? nullptr : &context.mesh.link(peer));
      host_of.push_back(peer / ranks_per_host);
      if (ranks_per_cache != 0) cache_of.push_back(peer / ranks_per_cache);
    }
    group = make_group(context.rank, std::move(links), std::move(host_of), cache_of);
  }
  CollectiveOptions next_options() { return {++operation, 3, 0, 0, &buffers}; }

  Group group;
  BufferPool buffers;
  uint64_t operation = 0;
};

Status wrong(const Suite& suite, std::string_view what) {
  return Status::internal("operation " + std::to_string(suite.operation) + ": " +
                          std::string(what));
}

// Returns whether all ranks hold the same bytes, by comparing hashes.
Task expect_same_bits(Suite& suite, const Elements& result) {
  const uint64_t hash = std::hash<std::string_view>()(result.bytes());
  std::vector<uint64_t> hashes(suite.group.size);
  const std::vector<uint64_t> bytes_of(suite.group.size, sizeof(hash));
  Task gather = allgather(suite.group, suite.next_options(), &hash, hashes.data(), bytes_of);
  Status status = co_await std::move(gather);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (uint64_t other : hashes) {
    if (other != hash) co_return wrong(suite, "ranks have different bits");
  }
  co_return Status::ok();
}

struct AllreduceCase {
  AllreduceAlgorithm algorithm;
  DataType type;
  size_t elements;
  bool in_place;
};

Task check_allreduce(Suite& suite, AllreduceCase wanted) {
  const std::vector<Elements>& inputs = inputs_of(suite.group.size, wanted.type, wanted.elements);
  Elements own = inputs[suite.group.index];
  Elements apart(wanted.type, wanted.elements);
  Elements& out = wanted.in_place ? own : apart;
  Task reduce = allreduce(suite.group, suite.next_options(), own.data(), out.data(),
                          wanted.elements, wanted.type, ReduceOp::kSum, wanted.algorithm);
  Status status = co_await std::move(reduce);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const size_t first =
      first_wrong(out, inputs, 0, wanted.type, ReduceOp::kSum, 2 * suite.group.size);
  if (first != wanted.elements) co_return wrong(suite, "allreduce gave wrong numbers");
  if (!out.guards_intact()) co_return wrong(suite, "allreduce wrote beyond its output");
  Task same = expect_same_bits(suite, out);
  status = co_await std::move(same);
  co_return status;
}

Task check_allreduces(Suite& suite) {
  using enum AllreduceAlgorithm;
  for (AllreduceAlgorithm algorithm : {kAuto, kDirect, kRecursiveDoubling, kRing, kHierarchical}) {
    if (algorithm == kHierarchical && suite.group.by_host == nullptr) continue;
    for (DataType type : {DataType::kFloat32, DataType::kBfloat16}) {
      for (size_t elements : {0, 1, 1000, 20011}) {
        const AllreduceCase wanted{algorithm, type, elements, elements % 2 == 0};
        Task check = check_allreduce(suite, wanted);
        Status status = co_await std::move(check);
        PERSEUS_CO_RETURN_IF_ERROR(status);
      }
    }
  }
  co_return Status::ok();
}

Task check_reduce_scatter(Suite& suite, size_t scale) {
  std::vector<uint64_t> elements_of;
  for (int rank = 0; rank < suite.group.size; ++rank) elements_of.push_back(scale * (rank % 3));
  const size_t total = std::accumulate(elements_of.begin(), elements_of.end(), size_t{0});
  const std::vector<Elements>& inputs = inputs_of(suite.group.size, DataType::kFloat32, total);
  Elements out(DataType::kFloat32, elements_of[suite.group.index]);
  Task reduce = reduce_scatter(suite.group, suite.next_options(), inputs[suite.group.index].data(),
                               out.data(), elements_of, DataType::kFloat32, ReduceOp::kSum);
  Status status = co_await std::move(reduce);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  const size_t offset =
      std::accumulate(elements_of.begin(), elements_of.begin() + suite.group.index, size_t{0});
  const size_t first =
      first_wrong(out, inputs, offset, DataType::kFloat32, ReduceOp::kSum, suite.group.size);
  if (first != out.size()) co_return wrong(suite, "reduce-scatter gave wrong numbers");
  co_return Status::ok();
}

Task check_broadcast(Suite& suite, size_t size) {
  const int root = suite.group.size / 2;
  Bytes data = pattern(size, suite.group.index);
  Task spread = broadcast(suite.group, suite.next_options(), data.data(), size, root);
  Status status = co_await std::move(spread);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (data != pattern(size, root)) co_return wrong(suite, "broadcast gave wrong bytes");
  co_return Status::ok();
}

Task check_alltoall(Suite& suite, size_t scale) {
  const int own = suite.group.index;
  const auto size_between = [&](int from, int to) { return scale * ((from + 2 * to) % 4); };
  std::vector<uint64_t> send_bytes, receive_bytes;
  Bytes in, expected;
  for (int peer = 0; peer < suite.group.size; ++peer) {
    send_bytes.push_back(size_between(own, peer));
    receive_bytes.push_back(size_between(peer, own));
    const Bytes outgoing = pattern(send_bytes.back(), own, peer);
    in.insert(in.end(), outgoing.begin(), outgoing.end());
    const Bytes incoming = pattern(receive_bytes.back(), peer, own);
    expected.insert(expected.end(), incoming.begin(), incoming.end());
  }
  Bytes out(expected.size());
  Task exchange =
      alltoall(suite.group, suite.next_options(), in.data(), out.data(), send_bytes, receive_bytes);
  Status status = co_await std::move(exchange);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (out != expected) co_return wrong(suite, "alltoall gave wrong bytes");
  co_return Status::ok();
}

Task check_allgather(Suite& suite, size_t scale) {
  std::vector<uint64_t> bytes_of;
  Bytes expected;
  for (int rank = 0; rank < suite.group.size; ++rank) {
    bytes_of.push_back(scale * ((rank * 2) % 5));
    const Bytes block = pattern(bytes_of.back(), rank);
    expected.insert(expected.end(), block.begin(), block.end());
  }
  const Bytes in = pattern(bytes_of[suite.group.index], suite.group.index);
  Bytes out(expected.size());
  Task gather = allgather(suite.group, suite.next_options(), in.data(), out.data(), bytes_of);
  Status status = co_await std::move(gather);
  PERSEUS_CO_RETURN_IF_ERROR(status);
  if (out != expected) co_return wrong(suite, "allgather gave wrong bytes");
  co_return Status::ok();
}

Task check_movement(Suite& suite) {
  using Check = Task (*)(Suite&, size_t);
  for (Check start : {check_reduce_scatter, check_broadcast, check_alltoall, check_allgather}) {
    for (size_t scale : {0, 1, 999, test::kIsSanitized ? 9001 : 40009}) {
      Task check = start(suite, scale);
      Status status = co_await std::move(check);
      PERSEUS_CO_RETURN_IF_ERROR(status);
    }
  }
  co_return Status::ok();
}

// Several large sums side by side, as the engine's streams run them.
Task check_side_by_side(Suite& suite) {
  constexpr size_t kSums = 4, kElements = test::kIsSanitized ? 100003 : 300007;
  const std::vector<Elements>& inputs = inputs_of(suite.group.size, DataType::kFloat32, kElements);
  std::vector<Elements> sums;
  sums.assign(kSums, inputs[suite.group.index]);
  std::vector<Task> tasks;
  for (size_t i = 0; i < kSums; ++i) {
    tasks.push_back(
        allreduce(suite.group, suite.next_options(), sums[i].data(), sums[i].data(), kElements,
                  DataType::kFloat32, ReduceOp::kSum,
                  i % 2 == 0 ? AllreduceAlgorithm::kDirect : AllreduceAlgorithm::kRing));
  }
  AllTasks all(tasks);
  Status status = co_await all;
  PERSEUS_CO_RETURN_IF_ERROR(status);
  for (const Elements& sum : sums) {
    const size_t first =
        first_wrong(sum, inputs, 0, DataType::kFloat32, ReduceOp::kSum, 2 * suite.group.size);
    if (first != kElements) co_return wrong(suite, "a sum side by side with others is wrong");
  }
  co_return Status::ok();
}

class OverLinks : public testing::TestWithParam<TransportUnderTest> {
 protected:
  Settings settings() const {
    return test_settings({{"PERSEUS_TRANSPORT", GetParam().transport},
                          {"PERSEUS_ALLREDUCE_STREAMS", GetParam().streams}});
  }
};

std::string transport_name(const testing::TestParamInfo<TransportUnderTest>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Transports, OverLinks, testing::ValuesIn(transports_under_test()),
                         transport_name);

Task run_allreduces(RankContext& context) {
  // Two ranks per host if their number is even, so that there is traffic between hosts.
  Suite suite(context, context.size % 2 == 0 ? 2 : context.size);
  Task checks = check_allreduces(suite);
  Status status = co_await std::move(checks);
  co_return status;
}

Task run_allreduces_under_two_caches(RankContext& context) {
  Suite suite(context, context.size, 2);
  if (!can_be_hierarchical(suite.group)) co_return wrong(suite, "there are not two levels");
  Task checks = check_allreduces(suite);
  Status status = co_await std::move(checks);
  co_return status;
}

Task run_movement(RankContext& context) {
  Suite suite(context, context.size);
  Task checks = check_movement(suite);
  Status status = co_await std::move(checks);
  co_return status;
}

Task run_side_by_side(RankContext& context) {
  Suite suite(context, context.size);
  Task checks = check_side_by_side(suite);
  Status status = co_await std::move(checks);
  co_return status;
}

TEST_P(OverLinks, AllreduceIsRightAndTheSameOnEveryRank) {
  for (int size = 1; size <= world_maker.largest; ++size) {
    SCOPED_TRACE(size);
    expect_world_ok(size, settings(), run_allreduces);
  }
}

TEST_P(OverLinks, AllreduceIsRightUnderTwoCaches) {
  expect_world_ok(4, settings(), run_allreduces_under_two_caches);
}

TEST_P(OverLinks, OtherCollectivesAreRight) {
  for (int size = 1; size <= world_maker.largest; ++size) {
    SCOPED_TRACE(size);
    expect_world_ok(size, settings(), run_movement);
  }
}

TEST_P(OverLinks, AllreducesRunSideBySide) {
  for (int size : {2, 3, 4}) {
    SCOPED_TRACE(size);
    expect_world_ok(size, settings(), run_side_by_side);
  }
}

}  // namespace
}  // namespace perseus
