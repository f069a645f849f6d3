// perseus.h: messages between two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "capi/world.h"
#include "perseus/perseus.h"

namespace perseus::test {
namespace {

constexpr size_t kSmall = 10, kLarge = 20'000, kHuge = 3'000'000;  // floats

// One end of a message of floats.
struct End {
  End(int peer, int tag, std::vector<float>& values, perseus_process_set_t set = PERSEUS_WORLD)
      : shape{static_cast<int64_t>(values.size())} {
    tensor = {values.data(), values.data(), shape, 1, PERSEUS_FLOAT32};
    raw.struct_size = sizeof raw;
    raw.set = set;
    raw.peer = peer;
    raw.tag = tag;
    raw.tensor = &tensor;
  }
  End(const End&) = delete;

  perseus_handle_t begin(perseus_status_t (*call)(const perseus_transfer_t*, perseus_handle_t*)) {
    perseus_handle_t handle = 0;
    REQUIRE(call(&raw, &handle) == PERSEUS_OK);
    return handle;
  }
  perseus_handle_t send() { return begin(perseus_send); }
  perseus_handle_t receive() { return begin(perseus_recv); }

  int64_t shape[1];
  perseus_tensor_t tensor;
  perseus_transfer_t raw{};
};

perseus_status_t finish(perseus_handle_t handle) {
  const perseus_status_t status = perseus_wait(handle, -1);
  perseus_release(handle);
  return status;
}

std::vector<float> numbers(size_t count, int seed) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(seed));
  return values;
}

class Messages : public testing::TestWithParam<int> {};  // the credit, in KiB

INSTANTIATE_TEST_SUITE_P(Credit, Messages, testing::Values(0, 1, 100, 4096));

TEST_P(Messages, GoToTheRankThatAsksForThem) {
  const Environment credit{{"PERSEUS_MESSAGE_CREDIT", std::to_string(GetParam())}};
  for (const int size : {1, 2, 3, 4}) {
    World(size, credit).run([size](int rank) {
      for (const size_t count : {size_t{0}, size_t{1}, kSmall, kLarge, kHuge}) {
        const int to = (rank + 1) % size, from = (rank + size - 1) % size;
        std::vector<float> sent = numbers(count, rank), received(count, -1.0f);
        End out(to, 7, sent), in(from, 7, received);
        const perseus_handle_t sending = out.send(), receiving = in.receive();
        REQUIRE(finish(receiving) == PERSEUS_OK);
        REQUIRE(finish(sending) == PERSEUS_OK);
        REQUIRE(received == numbers(count, from));
      }
    });
  }
}

TEST_P(Messages, AreTakenInTheOrderInWhichTheyWereSent) {
  World(2, {{"PERSEUS_MESSAGE_CREDIT", std::to_string(GetParam())}}).run([](int rank) {
    // Sizes alternate, so that messages of one tag travel in different ways.
    constexpr int kMessages = 200;
    std::vector<std::vector<float>> values;
    std::vector<perseus_handle_t> handles;
    for (int i = 0; i < kMessages; ++i) {
      const size_t count = i % 3 == 0 ? kSmall : i % 3 == 1 ? kLarge : 3'000;
      values.push_back(rank == 0 ? numbers(count, i) : std::vector<float>(count));
    }
    for (int i = 0; i < kMessages; ++i) {
      End end(1 - rank, i % 2, values[i]);
      handles.push_back(rank == 0 ? end.send() : end.receive());
    }
    for (const perseus_handle_t handle : handles) REQUIRE(finish(handle) == PERSEUS_OK);
    for (int i = 0; i < kMessages; ++i) REQUIRE(values[i] == numbers(values[i].size(), i));
  });
}

TEST_P(Messages, MayBeTakenFromAnyRankWithAnyTag) {
  World(3, {{"PERSEUS_MESSAGE_CREDIT", std::to_string(GetParam())}}).run([](int rank) {
    if (rank > 0) {
      for (const size_t count : {kSmall, kLarge}) {
        std::vector<float> values = numbers(count, rank);
        REQUIRE(finish(End(0, 10 * rank, values).send()) == PERSEUS_OK);
      }
      return;
    }
    std::vector<size_t> counts[3];
    for (int i = 0; i < 4; ++i) {
      perseus_transfer_t any{};
      any.struct_size = sizeof any;
      any.peer = PERSEUS_ANY_RANK;
      any.tag = PERSEUS_ANY_TAG;
      perseus_handle_t handle = 0;
      REQUIRE(perseus_recv(&any, &handle) == PERSEUS_OK);
      const perseus_result_t result = wait_for_result(handle);
      REQUIRE(result.source == 1 || result.source == 2);
      REQUIRE(result.tag == 10 * result.source);
      REQUIRE(result.dtype == PERSEUS_FLOAT32 && result.rank == 1);
      const auto* data = static_cast<const float*>(result.data);
      const auto count = static_cast<size_t>(result.shape[0]);
      REQUIRE(std::vector<float>(data, data + count) == numbers(count, result.source));
      counts[result.source].push_back(count);
      perseus_release(handle);
    }
    REQUIRE(counts[1] == (std::vector<size_t>{kSmall, kLarge}));
    REQUIRE(counts[2] == (std::vector<size_t>{kSmall, kLarge}));
  });
}

TEST(Message, NeedsNotBeAskedForFirst) {
  World(2).run([](int rank) {
    for (const size_t count : {kSmall, kLarge}) {
      std::vector<float> sent = numbers(count, rank), received(count);
      REQUIRE(finish(End(1 - rank, 1, sent).send()) == PERSEUS_OK);
      std::fill(sent.begin(), sent.end(), -1.0f);  // it is the program's again
      REQUIRE(finish(End(1 - rank, 1, received).receive()) == PERSEUS_OK);
      REQUIRE(received == numbers(count, 1 - rank));
    }
  });
}

TEST(Message, WaitsWhereThereIsNoRoom) {
  World(2, {{"PERSEUS_MESSAGE_CREDIT", "16"}}).run([](int rank) {
    std::vector<float> values = numbers(kLarge, 0), received(kLarge);
    if (rank == 0) {
      const perseus_handle_t sending = End(1, 1, values).send();
      REQUIRE(perseus_wait(sending, 100) == PERSEUS_IN_PROGRESS);
      // Small ones fill the room, and then they wait as well. All of them come.
      std::vector<float> small = numbers(kSmall, 0);
      std::vector<perseus_handle_t> handles;
      for (int i = 0; i < 1000; ++i) handles.push_back(End(1, 2, small).send());
      REQUIRE(perseus_wait(handles.back(), 100) == PERSEUS_IN_PROGRESS);
      std::vector<float> go(1);
      REQUIRE(finish(End(1, 3, go).send()) == PERSEUS_OK);
      for (const perseus_handle_t handle : handles) REQUIRE(finish(handle) == PERSEUS_OK);
      REQUIRE(finish(sending) == PERSEUS_OK);
    } else {
      std::vector<float> go(1), small(kSmall);
      REQUIRE(finish(End(0, 3, go).receive()) == PERSEUS_OK);
      for (int i = 0; i < 1000; ++i) {
        REQUIRE(finish(End(0, 2, small).receive()) == PERSEUS_OK);
        REQUIRE(small == numbers(kSmall, 0));
      }
      REQUIRE(finish(End(0, 1, received).receive()) == PERSEUS_OK);
      REQUIRE(received == values);
    }
  });
}

TEST(Message, ThatDoesNotFitIsAnErrorOnBothRanks) {
  World(2).run([](int rank) {
    for (const size_t count : {kSmall, kHuge}) {
      std::vector<float> values(count + (rank == 1));
      End end(1 - rank, 4, values);
      if (rank == 0) {
        const perseus_status_t status = finish(end.send());
        // A small one is complete before anybody asks for it.
        REQUIRE(status == (count == kSmall ? PERSEUS_OK : PERSEUS_MISMATCH));
        REQUIRE(count == kSmall || last_error_has("send to rank 1 (tag 4): rank 0 sent float32[3"));
      } else {
        REQUIRE(finish(end.receive()) == PERSEUS_MISMATCH);
        REQUIRE(last_error_has("recv from rank 0 (tag 4): rank 0 sent float32["));
        REQUIRE(last_error_has("and rank 1 asked for float32["));
      }
      // The job goes on.
      REQUIRE(finish(rank == 0
                         ? End(1, 5, values).send()
                         : End(0, 5, values = std::vector<float>(count)).receive()) == PERSEUS_OK);
    }
  });
}

TEST(Message, HasEndsThatAreRanksOfTheSet) {
  World(2).run([](int rank) {
    std::vector<float> values(1);
    perseus_handle_t handle = 0;
    const auto is_refused = [&](int peer, int tag, perseus_process_set_t set, const char* why) {
      End end(peer, tag, values, set);
      return perseus_send(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT && last_error_has(why);
    };
    REQUIRE(is_refused(2, 0, PERSEUS_WORLD, "send to rank 2 (tag 0): rank 2 does not belong to"));
    REQUIRE(is_refused(PERSEUS_ANY_RANK, 0, PERSEUS_WORLD, "rank -1 does not belong to"));
    REQUIRE(is_refused(1 - rank, -1, PERSEUS_WORLD, "the tag is -1; it must be 0 or more"));
    REQUIRE(is_refused(1 - rank, 0, 77, "there is no process set 77"));
    End end(1 - rank, 0, values);
    end.tensor.input = nullptr;
    REQUIRE(perseus_send(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("its input is a null pointer"));
    end.tensor.output = nullptr;
    REQUIRE(perseus_recv(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("its output is a null pointer"));
    end.raw.tensor = nullptr;
    REQUIRE(perseus_send(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("its tensor is missing"));
    REQUIRE(perseus_send(&end.raw, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_recv(nullptr, &handle) == PERSEUS_INVALID_ARGUMENT);
  });
}

TEST(Message, ThatOneRankRefusesIsAnErrorOnBoth) {
  World(2).run([](int rank) {
    for (const int refuser : {0, 1}) {
      for (const size_t count : {kSmall, kHuge}) {
        std::vector<float> values(count);
        End end(1 - rank, 6, values);
        if (rank == refuser) end.raw.refusal = "its moon is full";
        const perseus_status_t status = finish(rank == 0 ? end.send() : end.receive());
        // A small message is complete before anybody can refuse it.
        const bool is_complete = rank == 0 && refuser == 1 && count == kSmall;
        REQUIRE(status == (is_complete ? PERSEUS_OK : PERSEUS_MISMATCH));
        REQUIRE(is_complete || last_error_has("its moon is full"));
        const std::string who = "rank " + std::to_string(refuser) + " could not take part";
        REQUIRE(rank == refuser || is_complete || last_error_has(who));
      }
    }
    // So is one whose tensor the library refuses.
    std::vector<float> values(1);
    End end(1 - rank, 7, values);
    perseus_handle_t handle = 0;
    if (rank == 0) {
      end.tensor.dtype = 99;
      REQUIRE(perseus_send(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
      REQUIRE(finish(End(1, 8, values).receive()) == PERSEUS_OK);
    } else {
      REQUIRE(finish(end.receive()) == PERSEUS_MISMATCH);
      REQUIRE(last_error_has("rank 0 could not take part: data type 99 is not supported"));
      REQUIRE(finish(End(0, 8, values).send()) == PERSEUS_OK);
    }
  });
}

TEST(Message, NeedsAnEngine) {
  std::vector<float> values(1);
  perseus_handle_t handle = 0;
  End end(0, 0, values);
  EXPECT_EQ(perseus_send(&end.raw, &handle), PERSEUS_NOT_INITIALIZED);
}

TEST(Message, OfOneSetIsNotTakenForOneOfAnother) {
  World(3).run([](int rank) {
    const int32_t both[] = {0, 2};
    perseus_process_set_t set = 0;
    REQUIRE(perseus_add_process_set(both, 2, &set) == PERSEUS_OK);
    std::vector<float> values(1);
    if (rank == 0) {
      values[0] = 1;
      REQUIRE(finish(End(2, 0, values, set).send()) == PERSEUS_OK);
      values[0] = 2;
      REQUIRE(finish(End(2, 0, values).send()) == PERSEUS_OK);
    } else if (rank == 2) {
      REQUIRE(finish(End(PERSEUS_ANY_RANK, PERSEUS_ANY_TAG, values).receive()) == PERSEUS_OK);
      REQUIRE(values[0] == 2);
      REQUIRE(finish(End(0, 0, values, set).receive()) == PERSEUS_OK);
      REQUIRE(values[0] == 1);
    } else {
      perseus_handle_t handle = 0;
      End end(0, 0, values, set);
      REQUIRE(perseus_send(&end.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
      REQUIRE(last_error_has("rank 1 does not belong to process set"));
    }
  });
}

TEST(Message, EndsWithItsProcessSet) {
  World(2, {{"PERSEUS_MESSAGE_CREDIT", "16"}}).run([](int rank) {
    const int32_t both[] = {0, 1};
    for (int i = 0; i < 3; ++i) {
      const perseus_process_set_t set = PERSEUS_FIRST_OPENED_SET + i;
      REQUIRE(perseus_open_process_set(set, both, 2) == PERSEUS_OK);
      std::vector<float> large(kLarge), small(kSmall), never(1);
      const perseus_handle_t handles[] = {End(1 - rank, 1, large, set).send(),
                                          End(1 - rank, 2, never, set).receive()};
      // These use up all room, and nobody ever asks for them.
      std::vector<perseus_handle_t> unasked;
      for (int k = 0; k < 100; ++k) unasked.push_back(End(1 - rank, 3, small, set).send());
      REQUIRE(perseus_close_process_set(set) == PERSEUS_OK);
      for (const perseus_handle_t handle : unasked) finish(handle);  // it may be on its way
      for (const perseus_handle_t handle : handles) {
        const perseus_status_t status = finish(handle);
        REQUIRE(status != PERSEUS_OK);
        REQUIRE(last_error_has("has been closed") || last_error_has("has closed process set"));
      }
    }
    // The room is free again.
    std::vector<float> values(kSmall);
    for (int k = 0; k < 20; ++k) REQUIRE(finish(End(1 - rank, 0, values).send()) == PERSEUS_OK);
    for (int k = 0; k < 20; ++k) REQUIRE(finish(End(1 - rank, 0, values).receive()) == PERSEUS_OK);
  });
}

TEST(Message, ComesEvenIfItsSenderHasLeft) {
  World(2).run_bare([](int rank) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    std::vector<float> small = numbers(kSmall, 3), large = numbers(kLarge, 4);
    if (rank == 0) {
      REQUIRE(finish(End(1, 1, small).send()) == PERSEUS_OK);
      REQUIRE(finish(End(1, 2, large).send()) == PERSEUS_OK);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::vector<float> got(kLarge);
      REQUIRE(finish(End(0, 2, got).receive()) == PERSEUS_OK && got == large);
      got.resize(kSmall);
      REQUIRE(finish(End(0, 1, got).receive()) == PERSEUS_OK && got == small);
      // Nothing more can come.
      REQUIRE(finish(End(0, 1, got).receive()) == PERSEUS_ABORTED);
      REQUIRE(last_error_has("rank 0") && last_error_has("has shut down or ended"));
      REQUIRE(finish(End(PERSEUS_ANY_RANK, 1, got).receive()) == PERSEUS_ABORTED);
      REQUIRE(last_error_has("all other ranks of process set 0 have left"));
      REQUIRE(finish(End(0, 1, got).send()) == PERSEUS_ABORTED);
      // Messages to oneself go on.
      REQUIRE(finish(End(1, 1, small).send()) == PERSEUS_OK);
      REQUIRE(finish(End(1, 1, got).receive()) == PERSEUS_OK && got == small);
    }
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
  });
}

TEST(Message, EndsWhenTheOtherRankLeaves) {
  World(3).run_bare([](int rank) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    std::vector<float> huge(kHuge), one(1);
    if (rank > 0) {
      const perseus_handle_t receiving = End(0, 1, one).receive();
      const perseus_handle_t sending = End(0, 2, huge).send();
      REQUIRE(finish(receiving) == PERSEUS_ABORTED);
      REQUIRE(last_error_has("recv from rank 0 (tag 1): rank 0 "));
      REQUIRE(finish(sending) == PERSEUS_ABORTED);
      REQUIRE(last_error_has("send to rank 0 (tag 2): rank 0 "));
      // The two others go on with each other.
      std::vector<float> values = numbers(kLarge, rank), got(kLarge);
      const perseus_handle_t other = End(3 - rank, 3, values).send();
      REQUIRE(finish(End(3 - rank, 3, got).receive()) == PERSEUS_OK);
      REQUIRE(finish(other) == PERSEUS_OK && got == numbers(kLarge, 3 - rank));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
  });
}

TEST(Message, EndsWithThisRanksShutdown) {
  World(2).run_bare([](int rank) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    std::vector<float> huge(kHuge), one(1);
    const perseus_handle_t handles[] = {End(1 - rank, 1, huge).send(),
                                        End(1 - rank, 2, one).receive(), End(rank, 3, huge).send()};
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
    for (const perseus_handle_t handle : handles) REQUIRE(finish(handle) == PERSEUS_ABORTED);
  });
}

TEST(Message, CallsBack) {
  World(2).run([](int rank) {
    static std::atomic<int> calls{0};
    std::vector<float> values(kLarge);
    End end(1 - rank, 0, values);
    end.raw.callback = [](void* user, perseus_handle_t, perseus_status_t status, const char*) {
      REQUIRE(status == PERSEUS_OK && *static_cast<int*>(user) == 5);
      ++calls;
    };
    int five = 5;
    end.raw.user = &five;
    REQUIRE(finish(rank == 0 ? end.send() : end.receive()) == PERSEUS_OK);
    while (calls == 0) std::this_thread::yield();
    REQUIRE(calls == 1);
  });
}

TEST(Message, GoesOverConnectionsBetweenHosts) {
  World(3, {{"PERSEUS_TRANSPORT", "tcp"}}).run([](int rank) {
    for (int round = 0; round < 5; ++round) {
      std::vector<perseus_handle_t> handles;
      std::vector<std::vector<float>> got(6), sent(6);
      for (int i = 0; i < 6; ++i) {
        const int peer = i / 2;
        if (peer == rank) continue;
        const size_t count = i % 2 == 0 ? kSmall : kHuge;
        sent[i] = numbers(count, rank + i);
        got[i].resize(count);
        handles.push_back(End(peer, i % 2, sent[i]).send());
        handles.push_back(End(peer, i % 2, got[i]).receive());
      }
      for (const perseus_handle_t handle : handles) REQUIRE(finish(handle) == PERSEUS_OK);
      for (int i = 0; i < 6; ++i) {
        if (i / 2 != rank) REQUIRE(got[i] == numbers(got[i].size(), i / 2 + 2 * rank + i % 2));
      }
    }
  });
}

}  // namespace
}  // namespace perseus::test
