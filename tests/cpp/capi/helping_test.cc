// A thread that waits does the engine's work in place of the engine's thread, where allowed.
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#include <pthread.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sanitizers.h"
#include "world.h"

namespace perseus::test {
namespace {

class Helping : public testing::TestWithParam<int> {
 protected:
  World world{GetParam()};
};

// The threads that ran a callback, and the number of calls in all.
class Visitors {
 public:
  void note() {
    std::lock_guard lock(mutex_);
    ids_.insert(pthread_self());
    visits_.fetch_add(1);
  }
  void wait_for(int visits) const {
    while (visits_.load() < visits) std::this_thread::yield();
  }
  std::set<pthread_t> ids() const {
    std::lock_guard lock(mutex_);
    return ids_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<pthread_t> ids_;
  std::atomic<int> visits_{0};
};

const std::vector<int64_t> kOne{1};

float allreduce(const std::string& name, float value, perseus_process_set_t set = PERSEUS_WORLD) {
  Submission submission(PERSEUS_ALLREDUCE, name, set);
  submission.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
  REQUIRE(submission.run() == PERSEUS_OK);
  return value;
}

// Called until it has worked on all ranks: where others need the processors too, a waiting thread
// leaves the work to the engine's thread.
template <typename Attempt>
void expect_once(Attempt attempt) {
  constexpr int kAttempts = 300;
  for (int i = 0; i < kAttempts; ++i) {
    if (allreduce("so on ranks", attempt() ? 1 : 0) == perseus_size()) return;
    usleep(1000 * i);
  }
  REQUIRE(false);
}

TEST_P(Helping, CallbacksRunOnOneThreadOfTheLibraryWhileOthersWait) {
  world.run([](int) {
    const int size = perseus_size();
    Visitors visitors;
    constexpr int kRounds = 300;
    std::thread waiter([&] {
      for (int i = 0; i < 3 * kRounds; ++i) REQUIRE(allreduce("waited", 1) == size);
    });
    for (int i = 0; i < kRounds; ++i) {
      float value = 1;
      Submission called(PERSEUS_ALLREDUCE, "called");
      called.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      called.raw.user = &visitors;
      called.raw.callback = [](void* its, perseus_handle_t, perseus_status_t, const char*) {
        static_cast<Visitors*>(its)->note();
      };
      REQUIRE(called.run() == PERSEUS_OK && value == size);
      if (i % 3 == 0) REQUIRE(allreduce("alone", 1) == size);
    }
    waiter.join();
    visitors.wait_for(kRounds);
    const auto ids = visitors.ids();
    REQUIRE(ids.size() == 1 && ids.count(pthread_self()) == 0);
  });
}

// An operation of this rank alone is complete in the turn that takes it up.
TEST_P(Helping, CallbacksOfWhatIsDoneAtOnceRunOnThatThreadToo) {
  world.run([](int rank) {
    const int32_t first_rank = 0;
    perseus_process_set_t alone = 0;
    if (perseus_size() > 1) {
      REQUIRE(perseus_add_process_set(&first_rank, 1, &alone) == PERSEUS_OK);
    }
    constexpr int kRounds = kIsSanitized ? 600 : 3000;
    std::atomic<bool> is_over{false};
    std::thread caller;
    if (rank == 0) {
      caller = std::thread([&] {
        Visitors visitors;
        int calls = 0;
        for (; !is_over || calls == 0; ++calls) {
          float value = 1;
          Submission called(PERSEUS_ALLREDUCE, "called", alone);
          called.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
          called.raw.user = &visitors;
          called.raw.callback = [](void* its, perseus_handle_t, perseus_status_t, const char*) {
            static_cast<Visitors*>(its)->note();
          };
          const perseus_handle_t handle = called.submit();
          while (perseus_poll(handle) == 0) std::this_thread::yield();
          perseus_release(handle);
          usleep(20);  // in which the loop may be handed off
        }
        visitors.wait_for(calls);
        REQUIRE(visitors.ids().size() == 1);
      });
    }
    for (int i = 0; i < kRounds; ++i) REQUIRE(allreduce("waited", 1) == perseus_size());
    is_over = true;
    if (caller.joinable()) caller.join();
  });
}

TEST_P(Helping, WhatFollowsAWaitIsDoneThoughNobodyWaitsForIt) {
  world.run([](int) {
    for (int i = 0; i < 50; ++i) {
      REQUIRE(allreduce("waited", 1) == perseus_size());
      float value = 1;
      Submission left(PERSEUS_ALLREDUCE, "left");
      left.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      const perseus_handle_t handle = left.submit();
      while (perseus_poll(handle) == 0) usleep(100);
      REQUIRE(perseus_wait(handle, 0) == PERSEUS_OK && value == perseus_size());
      perseus_release(handle);
    }
  });
}

TEST_P(Helping, FunctionsOfACodecRunOnTheLibrarysThread) {
  static Visitors visitors;
  world.run([](int) {
    REQUIRE(allreduce("before", 1) == perseus_size());
    perseus_codec_t functions{};
    functions.struct_size = sizeof functions;
    functions.name = "plain";
    functions.encoded_size = [](void*, size_t elements) { return elements * sizeof(float); };
    functions.encode = [](void*, const float* elements, size_t count, void* encoded) {
      visitors.note();
      std::memcpy(encoded, elements, count * sizeof(float));
    };
    functions.decode = [](void*, const void* encoded, float* elements, size_t count) {
      visitors.note();
      std::memcpy(elements, encoded, count * sizeof(float));
    };
    int32_t codec = 0;
    REQUIRE(perseus_register_codec(&functions, &codec) == PERSEUS_OK);
    for (int i = 0; i < 200; ++i) {
      float value = 1;
      Submission coded(PERSEUS_ALLREDUCE, "coded");
      coded.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      coded.raw.codec = codec;
      REQUIRE(coded.run() == PERSEUS_OK && value == perseus_size());
    }
    const auto ids = visitors.ids();
    REQUIRE(ids.size() <= 1 && ids.count(pthread_self()) == 0);
    REQUIRE(ids.size() == 1 || perseus_size() == 1);
  });
}

// The calls of a callback that may run in a wait, one at a time.
struct Seen {
  std::set<pthread_t> threads;
  int calls = 0;
  int32_t next = -1;  // the name that it submits
  float value = 0;
  perseus_handle_t submitted = 0;
};

// Does everything that a callback may do, and tries what it may not.
void see(void* its, perseus_handle_t, perseus_status_t status, const char*) {
  auto& seen = *static_cast<Seen*>(its);
  REQUIRE(status == PERSEUS_OK);
  seen.threads.insert(pthread_self());
  ++seen.calls;
  seen.value = 1;
  const perseus_tensor_t tensor{&seen.value, &seen.value, kOne.data(), 1, PERSEUS_FLOAT32};
  perseus_submission_t next{};
  next.struct_size = sizeof next;
  next.id = seen.next;
  next.tensor_count = 1;
  next.tensors = &tensor;
  next.reduce_op = PERSEUS_SUM;
  next.prescale = next.postscale = 1;
  REQUIRE(perseus_submit(&next, &seen.submitted) == PERSEUS_OK);
  // A rank that is alone may find it done.
  const perseus_status_t waited = perseus_wait(seen.submitted, -1);
  REQUIRE(waited == PERSEUS_INVALID_ARGUMENT || perseus_size() == 1);
  REQUIRE(perseus_shutdown() == PERSEUS_INVALID_ARGUMENT);
  const int32_t first_rank = 0;
  REQUIRE(perseus_open_process_set(PERSEUS_FIRST_OPENED_SET, &first_rank, 1) ==
          PERSEUS_INVALID_ARGUMENT);
  REQUIRE(perseus_close_process_set(PERSEUS_FIRST_OPENED_SET) == PERSEUS_INVALID_ARGUMENT);
}

TEST_P(Helping, CallbacksThatMayRunInAWaitDo) {
  world.run([](int) {
    Seen seen;
    REQUIRE(perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "next", &seen.next) == PERSEUS_OK);
    int32_t barrier = 0;
    REQUIRE(perseus_register(PERSEUS_WORLD, PERSEUS_BARRIER, "barrier", &barrier) == PERSEUS_OK);
    REQUIRE(perseus_wait(-5, 0) == PERSEUS_INVALID_ARGUMENT);
    const std::string mistake = perseus_last_error();  // not the reason why callbacks were refused
    int rounds = 0;
    const auto round = [&] {
      float value = 1;
      Submission called(PERSEUS_ALLREDUCE, "called");
      called.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      called.raw.user = &seen;
      called.raw.callback = see;
      called.raw.callback_thread = PERSEUS_CALLBACK_IN_WAIT;
      REQUIRE(called.run() == PERSEUS_OK && value == perseus_size());
      // Follows the callback, wherever that runs.
      Submission after(PERSEUS_BARRIER, "barrier");
      REQUIRE(after.run() == PERSEUS_OK);
      REQUIRE(seen.calls == ++rounds);
      REQUIRE(perseus_wait(seen.submitted, -1) == PERSEUS_OK && seen.value == perseus_size());
      perseus_release(seen.submitted);
    };
    expect_once([&] {
      for (int i = 0; i < 100; ++i) round();
      return seen.threads.count(pthread_self()) == 1;
    });
    REQUIRE(seen.threads.size() <= 2);  // this one and the library's
    REQUIRE(perseus_last_error() == mistake);
  });
}

// A callback's restrictions also hold while another thread shuts down.
TEST_P(Helping, ACallbackThatIsToldOfTheEndIsRefusedWhatWouldWait) {
  if (GetParam() == 1) GTEST_SKIP() << "nothing is under way for long";
  for (const perseus_callback_thread_t where :
       {PERSEUS_CALLBACK_IN_LIBRARY, PERSEUS_CALLBACK_IN_WAIT}) {
    World(GetParam()).run([where](int rank) {
      struct Told {
        perseus_handle_t other = 0;
        std::atomic<int> calls{0};
      } told;
      float value = 1;
      Submission other(PERSEUS_ALLREDUCE, "other");
      other.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      Submission lone(PERSEUS_ALLREDUCE, "lone");
      lone.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      lone.raw.user = &told;
      lone.raw.callback_thread = where;
      lone.raw.callback = [](void* its, perseus_handle_t, perseus_status_t status, const char*) {
        auto& seen = *static_cast<Told*>(its);
        REQUIRE(status == PERSEUS_ABORTED);
        const perseus_status_t begun = perseus_init(nullptr);
        REQUIRE(begun == PERSEUS_INVALID_ARGUMENT || begun == PERSEUS_OK);  // if it runs yet
        REQUIRE(perseus_shutdown() == PERSEUS_INVALID_ARGUMENT);
        const perseus_status_t waited = perseus_wait(seen.other, -1);
        REQUIRE(waited == PERSEUS_INVALID_ARGUMENT || waited == PERSEUS_ABORTED);
        ++seen.calls;
      };
      if (rank != 0) return;  // the others leave
      told.other = other.submit();
      const perseus_handle_t handle = lone.submit();
      std::thread waiter([&] { perseus_wait(handle, 100); });
      usleep(10000);
      perseus_shutdown();
      waiter.join();
      REQUIRE(told.calls == 1);
    });
  }
}

TEST_P(Helping, AChildThatACallbackForksEndsWithTheCallback) {
  if (GetParam() > 2) GTEST_SKIP() << "of two as of more";
  for (const perseus_callback_thread_t where :
       {PERSEUS_CALLBACK_IN_LIBRARY, PERSEUS_CALLBACK_IN_WAIT}) {
    world.run([where](int) {
      std::atomic<pid_t> child{0};
      float value = 1;
      Submission called(PERSEUS_ALLREDUCE, "called");
      called.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      called.raw.user = &child;
      called.raw.callback_thread = where;
      called.raw.callback = [](void* its, perseus_handle_t, perseus_status_t, const char*) {
        *static_cast<std::atomic<pid_t>*>(its) = fork();
      };
      REQUIRE(called.run() == PERSEUS_OK && value == perseus_size());
      while (child == 0) usleep(100);
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
      REQUIRE(allreduce("after", 1) == perseus_size());
    });
  }
}

TEST_P(Helping, ACallbackRunsInTheLibraryOrInAWaitAndNowhereElse) {
  world.run([](int) {
    float value = 1;
    Submission called(PERSEUS_ALLREDUCE, "called");
    called.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
    called.raw.callback_thread = 2;
    REQUIRE(called.run() == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::string(perseus_last_error()).find("called") != std::string::npos);
    REQUIRE(std::string(perseus_last_error()).find("callback_thread 2") != std::string::npos);
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    options.callback_thread = -1;
    perseus_gradients_t* gradients = nullptr;
    REQUIRE(perseus_gradients_create(&options, &gradients) == PERSEUS_INVALID_ARGUMENT);
  });
}

// ---- Gradients.

struct Batches {
  std::set<pthread_t> threads;
  std::vector<int64_t> done;
};

// This many batches of three gradients, each waited for, as in a training loop.
void train(perseus_gradients_options_t options, int batches) {
  options.struct_size = sizeof options;
  options.reduce_op = PERSEUS_SUM;
  perseus_gradients_t* gradients = nullptr;
  REQUIRE(perseus_gradients_create(&options, &gradients) == PERSEUS_OK);
  float values[3];
  for (float& value : values) {
    const perseus_tensor_t tensor{&value, nullptr, kOne.data(), 1, PERSEUS_FLOAT32};
    int32_t number = 0;
    const std::string name = "layer" + std::to_string(&value - values);
    REQUIRE(perseus_gradients_add(gradients, name.c_str(), &tensor, &number) == PERSEUS_OK);
  }
  for (int batch = 0; batch < batches; ++batch) {
    for (int g = 2; g >= 0; --g) {
      values[g] = static_cast<float>(g + batch);
      REQUIRE(perseus_gradients_submit(gradients, g, PERSEUS_NO_STREAM) == PERSEUS_OK);
    }
    for (int g = 0; g < 3; ++g) {
      REQUIRE(perseus_gradients_wait(gradients, g, -1) == PERSEUS_OK);
      REQUIRE(values[g] == static_cast<float>(perseus_size() * (g + batch)));
    }
  }
  perseus_gradients_destroy(gradients);
}

// The threads on which the batches were done.
std::set<pthread_t> train_and_see(perseus_callback_thread_t where) {
  Batches batches;
  perseus_gradients_options_t options{};
  options.user = &batches;
  options.callback_thread = where;
  options.batch_done = [](void* user, int64_t batch, perseus_status_t status, const char*) {
    auto& its = *static_cast<Batches*>(user);
    REQUIRE(status == PERSEUS_OK);
    its.threads.insert(pthread_self());
    its.done.push_back(batch);
  };
  constexpr int kBatches = 100;
  train(options, kBatches);
  REQUIRE(batches.done.size() == kBatches);
  for (int i = 0; i < kBatches; ++i) REQUIRE(batches.done[i] == i);
  return batches.threads;
}

TEST_P(Helping, CallbacksOfGradientsRunWhereTheyMay) {
  world.run([](int) {
    for (int i = 0; i < 5; ++i) {
      const auto threads = train_and_see(PERSEUS_CALLBACK_IN_LIBRARY);
      REQUIRE(threads.size() == 1 && threads.count(pthread_self()) == 0);
    }
    expect_once([] { return train_and_see(PERSEUS_CALLBACK_IN_WAIT).count(pthread_self()) == 1; });
  });
}

TEST_P(Helping, GradientsWithoutCallbacksComeOutRightWhoeverReducesThem) {
  world.run([](int) { train({}, 500); });
}

// The sums of all ranks are equal to the last bit, whatever a waiting thread does to numbers
// smaller than the least normal one.
TEST_P(Helping, WhatIsSubnormalIsKept) {
  world.run([](int rank) {
    const float least = std::numeric_limits<float>::denorm_min();
#if defined(__SSE2__)
    if (rank == 0) _mm_setcsr(_mm_getcsr() | _MM_FLUSH_ZERO_ON | 0x40 /* denormals are zeros */);
#endif
    for (int i = 0; i < 500; ++i) {
      float value = least;
      Submission submission(PERSEUS_ALLREDUCE, "subnormal");
      submission.tensor(&value, &value, kOne, PERSEUS_FLOAT32);
      REQUIRE(submission.run() == PERSEUS_OK);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      REQUIRE(bits == static_cast<uint32_t>(perseus_size()));
    }
  });
}

// A lock that another thread had at the fork would never be free in the child.
TEST_P(Helping, AChildForkedBesideThreadsThatWaitBeginsAnew) {
  if (GetParam() > 1) GTEST_SKIP() << "a child has no ranks beside it";
  if (kIsSanitized) GTEST_SKIP() << "the sanitizer's own locks may be taken in the child";
  world.run([](int) {
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        while (!is_over) REQUIRE(allreduce("thread" + std::to_string(t), 1) == 1);
      });
    }
    for (int i = 0; i < 300; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);
        REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
        for (int k = 0; k < 5; ++k) REQUIRE(allreduce("child", 1) == 1);
        REQUIRE(perseus_shutdown() == PERSEUS_OK);
        _exit(0);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    is_over = true;
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(Helping, ManyThreadsWaitAtOnce) {
  world.run([](int) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        const std::string name = "thread" + std::to_string(t);
        for (int i = 0; i < 200; ++i) REQUIRE(allreduce(name, 1) == perseus_size());
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Helping, testing::Values(1, 2, 3, 4),
                         [](const auto& its) { return std::to_string(its.param) + "_ranks"; });

}  // namespace
}  // namespace perseus::test
