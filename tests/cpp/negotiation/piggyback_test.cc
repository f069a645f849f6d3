// What goes along with ballots: small inputs, and sizes.
#include "negotiation/piggyback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "negotiation/cluster.h"

namespace perseus {
namespace {

using Names = std::vector<std::string>;

class AttachmentsTest : public testing::TestWithParam<int> {};

// By index, one after the other.
std::vector<std::byte> inputs_of_all(int size, size_t bytes) {
  std::vector<std::byte> all;
  for (int r = 0; r < size; ++r) {
    const std::vector<std::byte> its = Cluster::input(r, bytes);
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

TEST_P(AttachmentsTest, SmallInputsComeWithTheAgreementAlsoOnFirstSight) {
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  const auto submit_everywhere = [&] {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
    return cluster.deliver_all();
  };
  const int messages = submit_everywhere();  // a record, on first sight
  EXPECT_EQ(submit_everywhere(), messages);
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_EQ(cluster.inputs(r).size(), 2u);
    for (const auto& inputs : cluster.inputs(r)) {
      EXPECT_EQ(inputs, inputs_of_all(cluster.size(), sizeof(float))) << "rank " << r;
    }
  }
}

// Every rank's ballot has one record, of a name of its own.
TEST_P(AttachmentsTest, NoInputsComeWhereRanksNameDifferentNewOperations) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "of " + std::to_string(r));
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_TRUE(cluster.ready(r).empty());
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
  for (int r = 0; r < cluster.size(); ++r) {
    for (int other = 0; other < cluster.size(); ++other) {
      if (other != r) cluster.submit_quietly(r, "of " + std::to_string(other));
    }
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r).size(), static_cast<size_t>(cluster.size()));
    EXPECT_EQ(cluster.inputs(r), cluster.inputs(0));
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
}

TEST_P(AttachmentsTest, NoInputsComeWhereRanksDescribeANewOperationDifferently) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit(r, "a", Cluster::floats(r == 0 ? Shape{1, 1} : Shape{1}));
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.failures(r).size(), 1u);
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
}

TEST_P(AttachmentsTest, NoInputsComeWhereOneRankHasMoreToSayOrNoneOrHasJoined) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  const int odd = cluster.size() - 1;
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit_quietly(r, "a");
    cluster.submit(r, "b");
  }
  cluster.deliver_all();
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit_quietly(r, "a");
    if (r == odd) cluster.submit_quietly(r, "b");
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  for (int r = 0; r < odd; ++r) cluster.submit(r, "b");
  cluster.deliver_all();
  cluster.join(odd);
  for (int r = 0; r < odd; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), (Names{"a", "b", "a", "b", "a"})) << "rank " << r;
    const auto& inputs = cluster.inputs(r);
    EXPECT_EQ(inputs, cluster.inputs(0)) << "rank " << r;
    // Only "b" was pending alone, after everything else was done.
    const std::vector<std::byte> all = inputs_of_all(cluster.size(), sizeof(float));
    EXPECT_EQ(std::count(inputs.begin(), inputs.end(), all), 1);
    EXPECT_EQ(
        std::count_if(inputs.begin(), inputs.end(), [](const auto& each) { return !each.empty(); }),
        1);
  }
}

TEST_P(AttachmentsTest, RanksThatSubmitInDifferentOrdersHaveAllInputsOrNone) {
  Cluster cluster(GetParam(), 11);
  cluster.give_inputs(sizeof(float));
  std::mt19937 random(5);
  Names names = {"a", "b", "c"};
  constexpr int kSteps = 60;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Names> orders(cluster.size(), names);
    for (Names& order : orders) std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < names.size(); ++i) {
      for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, orders[r][i]);
      if (random() % 2 == 0) cluster.deliver_all();
    }
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "alone");
    cluster.deliver_all();
  }
  const std::vector<std::byte> all = inputs_of_all(cluster.size(), sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r).size(), kSteps * (names.size() + 1));
    EXPECT_EQ(cluster.inputs(r), cluster.inputs(0)) << "rank " << r;
    const auto came = std::count(cluster.inputs(r).begin(), cluster.inputs(r).end(), all);
    const auto absent =
        std::count(cluster.inputs(r).begin(), cluster.inputs(r).end(), std::vector<std::byte>());
    EXPECT_EQ(came + absent, static_cast<int64_t>(cluster.inputs(r).size()));
    EXPECT_GE(came, kSteps - 1);
    for (size_t i = 0; i < cluster.inputs(r).size(); ++i) {
      if (!cluster.inputs(r)[i].empty()) {
        EXPECT_EQ(cluster.agreements(r)[i].ready.size(), 1u);
      }
    }
  }
}

Description gathered(int64_t rows) {
  Description description = Cluster::floats({rows});
  description.kind = OperationKind::kAllgather;
  return description;
}

TEST_P(AttachmentsTest, SizesOfAllRanksComeWithTheAgreement) {
  Cluster cluster(GetParam());
  cluster.give_sizes(sizeof(int64_t), [](int) { return true; });
  for (int step = 0; step < 2; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a", gathered(r));
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_EQ(cluster.sizes(r).size(), 2u);
    for (const auto& sizes : cluster.sizes(r)) {
      EXPECT_EQ(sizes, inputs_of_all(cluster.size(), sizeof(int64_t))) << "rank " << r;
    }
    EXPECT_TRUE(cluster.inputs(r)[1].empty());
  }
}

// Both take eight bytes.
TEST_P(AttachmentsTest, NothingComesIfSomeRanksSendTheirInputAndOthersItsSize) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_sizes(sizeof(int64_t), [](int rank) { return rank == 1; });
  for (int step = 0; step < 2; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a", gathered(2));
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), (Names{"a", "a"})) << "rank " << r;
    EXPECT_TRUE(cluster.inputs(r)[1].empty());
    EXPECT_TRUE(cluster.sizes(r)[1].empty());
  }
}

TEST(Attachments, LargeInputsStayBehind) {
  for (const size_t bytes : {size_t{2048}, size_t{2052}}) {
    Cluster cluster(2);
    cluster.give_inputs(bytes);
    const int64_t elements = static_cast<int64_t>(bytes / sizeof(float));
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 2; ++r) cluster.submit(r, "a", Cluster::floats({elements}));
      cluster.deliver_all();
    }
    for (int r = 0; r < 2; ++r) {
      const auto expected = bytes == 2048 ? inputs_of_all(2, bytes) : std::vector<std::byte>();
      EXPECT_EQ(cluster.inputs(r).back(), expected) << bytes << " bytes";
    }
  }
}

TEST(Attachments, InputsOfAnotherSizeThanTheirNameHasAreAnError) {
  Cluster cluster(2);
  for (int r = 0; r < 2; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  cluster.give_inputs(2 * sizeof(float));
  for (int r = 0; r < 2; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < 2; ++r) EXPECT_FALSE(cluster.at(r).failure().is_ok());
}

TEST(Attachments, SizesOfAnOperationThatHasNoneOrOthersAreAnError) {
  const auto fails = [](const Description& description, size_t bytes) {
    Cluster cluster(2);
    cluster.give_sizes(bytes, [](int) { return true; });
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 2; ++r) cluster.submit(r, "a", description);
      cluster.deliver_all();
    }
    return !cluster.at(0).failure().is_ok() && !cluster.at(1).failure().is_ok();
  };
  EXPECT_FALSE(fails(gathered(1), sizeof(int64_t)));
  EXPECT_TRUE(fails(gathered(1), 2 * sizeof(int64_t)));
  EXPECT_TRUE(fails(Cluster::floats({2}), sizeof(int64_t)));
}

TEST(Piggyback, BytesThatAreNoneAreRefused) {
  Piggyback whole;
  const std::vector<std::byte> input = Cluster::input(5, 8);
  whole.set(3, 5, {Attachment::Kind::kInput, input});
  ByteWriter writer;
  whole.write(writer);
  for (size_t size = 0; size <= writer.size(); ++size) {
    ByteReader reader(writer.bytes().first(size));
    Piggyback copy;
    EXPECT_EQ(copy.read(reader), size == writer.size()) << size;
  }
  // Attachments of more bytes than may be sent along, of none, and of a kind that does not exist.
  const auto is_read = [](uint8_t kind, uint32_t bytes) {
    ByteWriter writer;
    writer.put<uint32_t>(3);
    writer.put(kind);
    writer.put(bytes);
    writer.put<uint64_t>(1);
    writer.put_bytes(std::vector<std::byte>(5000).data(), 5000);
    ByteReader reader(writer.bytes());
    Piggyback copy;
    return copy.read(reader);
  };
  EXPECT_TRUE(is_read(0, 8));
  for (const uint32_t bytes : {0u, 5000u, UINT32_MAX}) EXPECT_FALSE(is_read(0, bytes)) << bytes;
  EXPECT_FALSE(is_read(2, 8));
}

INSTANTIATE_TEST_SUITE_P(Sizes, AttachmentsTest, testing::Values(1, 2, 3, 4, 5, 7, 8, 13, 16, 33));

}  // namespace
}  // namespace perseus
