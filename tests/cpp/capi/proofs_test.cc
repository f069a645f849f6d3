// Proofs through the C interface: whose messages they are, and what a wrong one does.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

using Proof = std::array<char, PERSEUS_PROOF_BYTES>;

perseus_message_t message(int32_t sender, const std::string& data, uint64_t sequence = 1) {
  perseus_message_t message{};
  message.struct_size = sizeof message;
  message.sender = sender;
  message.what = "a message";
  message.sequence = sequence;
  message.data = data.data();
  message.bytes = data.size();
  return message;
}

// Gives every rank the root's.
perseus_status_t try_to_broadcast(Proof& proof, int32_t root) {
  const std::vector<int64_t> shape = {PERSEUS_PROOF_BYTES};
  Submission operation(PERSEUS_BROADCAST, "proof");
  operation.raw.root = root;
  return operation.tensor(proof.data(), proof.data(), shape, PERSEUS_UINT8).run();
}

Proof broadcast(Proof proof, int32_t root) {
  REQUIRE(try_to_broadcast(proof, root) == PERSEUS_OK);
  return proof;
}

TEST(Proofs, ARankAcceptsWhatAnotherHasSent) {
  World(3, {}).run([](int rank) {
    const std::string data(100'000, 'x');
    for (int sender = 0; sender < 3; ++sender) {
      const perseus_message_t sent = message(sender, data);
      Proof proof{};
      if (rank == sender) REQUIRE(perseus_prove(&sent, proof.data()) == PERSEUS_OK);
      proof = broadcast(proof, sender);
      REQUIRE(perseus_check_proof(&sent, proof.data()) == PERSEUS_OK);
    }
  });
}

TEST(Proofs, AMessageWithoutBytesHasOneToo) {
  World(1, {}).run([](int) {
    perseus_message_t empty = message(0, "");
    empty.data = nullptr;
    Proof proof{};
    REQUIRE(perseus_prove(&empty, proof.data()) == PERSEUS_OK);
    REQUIRE(perseus_check_proof(&empty, proof.data()) == PERSEUS_OK);
  });
}

// Rank 1 checks rank 0's proof for another message than it was made for.
void expect_refusal(const std::function<void(perseus_message_t&)>& change) {
  World(3, {}).run([&](int rank) {
    const std::string data = "bytes";
    perseus_message_t sent = message(0, data);
    Proof proof{};
    if (rank == 0) REQUIRE(perseus_prove(&sent, proof.data()) == PERSEUS_OK);
    const perseus_status_t status = try_to_broadcast(proof, 0);
    // Another rank may hear of the refusal before its own part of the broadcast has ended.
    REQUIRE(status == PERSEUS_OK || (rank != 1 && status == PERSEUS_ABORTED));
    std::string told;
    if (rank == 1) {
      change(sent);
      REQUIRE(perseus_check_proof(&sent, proof.data()) == PERSEUS_ABORTED);
      told = perseus_last_error();
    }
    // Every rank learns of it, by whatever it does next.
    Submission next(PERSEUS_BARRIER, "next");
    REQUIRE(next.run() == PERSEUS_ABORTED);
    const std::string error = perseus_last_error();
    REQUIRE(error.find("rank 1 on ") != std::string::npos);
    REQUIRE(error.find(" cannot go on: ") != std::string::npos);
    REQUIRE(error.find("what has come from rank ") != std::string::npos);
    REQUIRE(rank != 1 || error.find(told) != std::string::npos);
  });
}

TEST(Proofs, AreForTheseBytesOfThisRankAlone) {
  expect_refusal([](perseus_message_t& sent) { sent.data = "Bytes"; });
  expect_refusal([](perseus_message_t& sent) { --sent.bytes; });
  expect_refusal([](perseus_message_t& sent) { sent.sender = 2; });
}

TEST(Proofs, AreForThisCallAlone) {
  expect_refusal([](perseus_message_t& sent) { ++sent.sequence; });
  expect_refusal([](perseus_message_t& sent) { sent.process_set = 1; });
  expect_refusal([](perseus_message_t& sent) { sent.what = "another message"; });
}

TEST(Proofs, OfAnEarlierWorldOfTheJobAreRefused) {
  World(2, {}).run([](int rank) {
    const std::string data = "bytes";
    const perseus_message_t sent = message(0, data);
    Proof proof{};
    if (rank == 0) REQUIRE(perseus_prove(&sent, proof.data()) == PERSEUS_OK);
    proof = broadcast(proof, 0);
    REQUIRE(perseus_check_proof(&sent, proof.data()) == PERSEUS_OK);
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    REQUIRE(perseus_check_proof(&sent, proof.data()) == PERSEUS_ABORTED);
  });
}

TEST(Proofs, CannotBeMadeForAnotherRank) {
  World(2, {}).run([](int rank) {
    const std::string data = "bytes";
    const perseus_message_t others = message(1 - rank, data);
    Proof proof{};
    REQUIRE(perseus_prove(&others, proof.data()) == PERSEUS_INVALID_ARGUMENT);
    for (const int32_t sender : {-1, 2}) {
      const perseus_message_t nobodys = message(sender, data);
      REQUIRE(perseus_check_proof(&nobodys, proof.data()) == PERSEUS_INVALID_ARGUMENT);
    }
  });
}

TEST(Proofs, NeedAJobAndAWholeMessage) {
  const std::string data = "bytes";
  perseus_message_t whole = message(0, data);
  Proof proof{};
  EXPECT_EQ(perseus_prove(&whole, proof.data()), PERSEUS_NOT_INITIALIZED);
  EXPECT_EQ(perseus_check_proof(&whole, proof.data()), PERSEUS_NOT_INITIALIZED);
  EXPECT_EQ(perseus_prove(nullptr, proof.data()), PERSEUS_INVALID_ARGUMENT);
  whole.struct_size = 0;
  EXPECT_EQ(perseus_check_proof(&whole, proof.data()), PERSEUS_INVALID_ARGUMENT);
}

TEST(Proofs, AnOperationHasTheSameNumberOnAllRanksAndNoOtherHasIt) {
  World(3, {}).run([](int rank) {
    uint64_t last = 0;
    for (int time = 0; time < 3; ++time) {
      std::vector<uint8_t> data(8, 0);
      const std::vector<int64_t> shape = {8};
      Submission operation(PERSEUS_BROADCAST, "same name");
      operation.tensor(data.data(), data.data(), shape, PERSEUS_UINT8);
      const perseus_handle_t handle = operation.submit();
      const uint64_t sequence = wait_for_result(handle).sequence;
      perseus_release(handle);
      REQUIRE(sequence > last);
      last = sequence;
      std::vector<int64_t> numbers(3);
      const std::vector<int64_t> one = {1};
      const auto own = static_cast<int64_t>(sequence);
      Submission gather(PERSEUS_ALLGATHER, "numbers");
      const perseus_handle_t gathered = gather.tensor(&own, nullptr, one, PERSEUS_INT64).submit();
      const auto* of_all = static_cast<const int64_t*>(wait_for_result(gathered).data);
      for (int other = 0; other < 3; ++other) REQUIRE(of_all[other] == of_all[rank]);
      perseus_release(gathered);
    }
  });
}

}  // namespace
}  // namespace perseus::test
