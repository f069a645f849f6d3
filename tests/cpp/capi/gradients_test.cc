// The gradients of a training loop: batches, callbacks, waiting, and errors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

// The callbacks of one model's gradients, in the order in which they run.
struct Told {
  std::mutex mutex;
  std::vector<int32_t> gradients;
  std::vector<perseus_status_t> statuses;
  std::vector<int64_t> batches;
  std::vector<perseus_status_t> batch_statuses;
  std::string batch_message;
  // For each batch, the number of gradients that were reported before it.
  std::vector<size_t> gradients_before;
};

void note_gradient(void* user, int32_t gradient, perseus_status_t status, const char*) {
  auto& told = *static_cast<Told*>(user);
  const std::lock_guard lock(told.mutex);
  told.gradients.push_back(gradient);
  told.statuses.push_back(status);
}

void note_batch(void* user, int64_t batch, perseus_status_t status, const char* message) {
  auto& told = *static_cast<Told*>(user);
  const std::lock_guard lock(told.mutex);
  told.batches.push_back(batch);
  told.batch_statuses.push_back(status);
  told.batch_message = message;
  told.gradients_before.push_back(told.gradients.size());
}

perseus_gradients_options_t telling(Told& told) {
  perseus_gradients_options_t options{};
  options.struct_size = sizeof options;
  options.gradient_done = note_gradient;
  options.batch_done = note_batch;
  options.user = &told;
  return options;
}

// A model of some layers, layer l having 100 l + 1 elements.
class Model {
 public:
  Model(int layers, const perseus_gradients_options_t* options) {
    REQUIRE(perseus_gradients_create(options, &handle) == PERSEUS_OK);
    for (int l = 0; l < layers; ++l) {
      values.emplace_back(100 * l + 1);
      add(l, static_cast<int64_t>(values[l].size()));
    }
  }
  ~Model() { perseus_gradients_destroy(handle); }

  void add(int l, int64_t elements) {
    const perseus_tensor_t tensor = {values[l].data(), nullptr, &elements, 1, PERSEUS_FLOAT32};
    int32_t number = -1;
    const std::string name = "layer" + std::to_string(l);
    REQUIRE(perseus_gradients_add(handle, name.c_str(), &tensor, &number) == PERSEUS_OK);
    REQUIRE(number == l);
  }
  void submit(int l, float value) {
    std::fill(values[l].begin(), values[l].end(), value);
    REQUIRE(perseus_gradients_submit(handle, l, nullptr) == PERSEUS_OK);
  }
  void require(int l, float value) {
    REQUIRE(perseus_gradients_wait(handle, l, -1) == PERSEUS_OK);
    for (const float each : values[l]) REQUIRE(each == value);
  }
  int layers() const { return static_cast<int>(values.size()); }

  perseus_gradients_t* handle = nullptr;
  std::vector<std::vector<float>> values;
};

class AnySizeOfGradients : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int sum_of_ranks() const { return size() * (size() - 1) / 2; }
  void run(const std::function<void(int)>& body) { World(size()).run(body); }
};

TEST_P(AnySizeOfGradients, AreAveragedBatchByBatchInWhicheverOrderTheyCome) {
  run([&](int rank) {
    Told told;
    const auto options = telling(told);
    const int layers = 5, batches = 4;
    {
      Model model(layers, &options);
      for (int batch = 0; batch < batches; ++batch) {
        for (int i = 0; i < layers; ++i) {
          const int l = rank % 2 == 0 ? layers - 1 - i : (i + batch) % layers;
          model.submit(l, static_cast<float>(size() * (l + batch) + rank));
        }
        for (int l = 0; l < layers; ++l) {
          model.require(l, static_cast<float>(size() * (l + batch)) +
                               static_cast<float>(sum_of_ranks()) / static_cast<float>(size()));
        }
      }
    }  // after which nobody is told
    REQUIRE(told.batches == std::vector<int64_t>({0, 1, 2, 3}));
    REQUIRE(told.batch_statuses == std::vector<perseus_status_t>(batches, PERSEUS_OK));
    REQUIRE(told.gradients.size() == static_cast<size_t>(layers * batches));
    for (int batch = 0; batch < batches; ++batch) {
      REQUIRE(told.gradients_before[batch] >= static_cast<size_t>((batch + 1) * layers));
    }
    for (int l = 0; l < layers; ++l) {
      REQUIRE(std::count(told.gradients.begin(), told.gradients.end(), l) == batches);
    }
  });
}

TEST_P(AnySizeOfGradients, CanBeWaitedForOneByOneWhileOthersAreYetToCome) {
  run([&](int rank) {
    Model model(3, nullptr);
    REQUIRE(perseus_gradients_wait(model.handle, 0, 0) == PERSEUS_OK);  // nothing was submitted
    model.submit(2, 1.0f);
    model.require(2, 1.0f);
    if (size() > 1 && rank == 0) {
      REQUIRE(perseus_gradients_submit(model.handle, 1, nullptr) == PERSEUS_OK);
      REQUIRE(perseus_gradients_wait(model.handle, 1, 1) == PERSEUS_IN_PROGRESS);
      REQUIRE(perseus_gradients_wait_all(model.handle, 1) == PERSEUS_IN_PROGRESS);
    }
    Submission barrier(PERSEUS_BARRIER, "barrier");
    REQUIRE(barrier.run() == PERSEUS_OK);
    if (size() == 1 || rank != 0) model.submit(1, 0.0f);
    model.submit(0, 3.0f);
    REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_OK);
    model.require(0, 3.0f);
  });
}

TEST_P(AnySizeOfGradients, HaveTheirOptions) {
  run([&](int rank) {
    perseus_gradients_options_t sum{};
    sum.struct_size = sizeof sum;
    sum.name = "sum";
    sum.reduce_op = PERSEUS_SUM;
    sum.scale = 0.5;
    Model sums(2, &sum), averages(2, nullptr);
    for (int l = 1; l >= 0; --l) {
      sums.submit(l, static_cast<float>(rank));
      averages.submit(l, 7.0f);
    }
    for (int l = 0; l < 2; ++l) {
      sums.require(l, 0.5f * static_cast<float>(sum_of_ranks()));
      averages.require(l, 7.0f);
    }
  });
}

TEST_P(AnySizeOfGradients, OfAProcessSet) {
  if (size() < 3) GTEST_SKIP() << "needs a rank outside of a set of two";
  run([&](int rank) {
    const int32_t ranks[] = {0, 2};
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    REQUIRE(perseus_add_process_set(ranks, 2, &options.set) == PERSEUS_OK);
    Model model(1, &options);
    if (rank == 0 || rank == 2) {
      model.submit(0, static_cast<float>(rank));
      model.require(0, 1.0f);
    } else {
      REQUIRE(perseus_gradients_submit(model.handle, 0, nullptr) == PERSEUS_INVALID_ARGUMENT);
    }
  });
}

// The next batch of a gradient from the callback of its last, ten times.
struct Relay {
  perseus_gradients_t* gradients = nullptr;
  std::atomic<int> batches{0};
};

TEST_P(AnySizeOfGradients, CanBeSubmittedByACallback) {
  run([&](int) {
    Relay relay;
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    options.reduce_op = PERSEUS_SUM;
    options.batch_done = [](void* user, int64_t batch, perseus_status_t status, const char*) {
      auto& of = *static_cast<Relay*>(user);
      REQUIRE(status == PERSEUS_OK);
      ++of.batches;
      if (batch < 9) REQUIRE(perseus_gradients_submit(of.gradients, 0, nullptr) == PERSEUS_OK);
    };
    options.user = &relay;
    Model model(1, &options);
    relay.gradients = model.handle;
    model.submit(0, 1.0f);
    while (relay.batches < 10) REQUIRE(perseus_gradients_wait(model.handle, 0, -1) == PERSEUS_OK);
    float expected = 1.0f;
    for (int batch = 0; batch < 10; ++batch) expected *= static_cast<float>(size());
    model.require(0, expected);
  });
}

TEST_P(AnySizeOfGradients, SayWhatIsWrongWithACall) {
  run([&](int) {
    perseus_gradients_t* none = nullptr;
    int32_t number = 0;
    REQUIRE(perseus_gradients_create(nullptr, nullptr) == PERSEUS_INVALID_ARGUMENT);
    perseus_gradients_options_t unset{};
    REQUIRE(perseus_gradients_create(&unset, &none) == PERSEUS_INVALID_ARGUMENT);
    perseus_gradients_options_t older{};  // without what lies behind its end
    older.struct_size = offsetof(perseus_gradients_options_t, callback_thread);
    older.callback_thread = -1;
    REQUIRE(perseus_gradients_create(&older, &none) == PERSEUS_OK);
    perseus_gradients_destroy(none);
    REQUIRE(perseus_gradients_submit(nullptr, 0, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_gradients_wait_all(nullptr, 0) == PERSEUS_INVALID_ARGUMENT);
    perseus_gradients_destroy(nullptr);

    Model model(2, nullptr);
    const int64_t one = 1;
    const perseus_tensor_t tensor = {model.values[0].data(), nullptr, &one, 1, PERSEUS_FLOAT32};
    REQUIRE(perseus_gradients_add(model.handle, "layer1", &tensor, &number) ==
            PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("gradient 'layer1' of 'gradients' is registered already"));
    REQUIRE(perseus_gradients_add(model.handle, "", &tensor, &number) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_gradients_add(model.handle, "new", nullptr, &number) ==
            PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_gradients_submit(model.handle, 2, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("has 2 gradients, and no number 2"));
    REQUIRE(perseus_gradients_wait(model.handle, -1, 0) == PERSEUS_INVALID_ARGUMENT);

    model.submit(1, 1.0f);
    REQUIRE(perseus_gradients_add(model.handle, "new", &tensor, &number) ==
            PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("comes too late"));
    model.require(1, 1.0f);
    REQUIRE(perseus_gradients_submit(model.handle, 1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("'layer1' of 'gradients' is submitted a second time in batch 0"));
    REQUIRE(last_error_has("'layer0' of 'gradients' has not been"));
    REQUIRE(perseus_gradients_wait(model.handle, 1, -1) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("is submitted a second time in batch 0"));
    model.submit(0, 1.0f);
    model.require(0, 1.0f);
    // As if the wrong ones had not been.
    for (int l = 1; l >= 0; --l) model.submit(l, 2.0f);
    for (int l = 0; l < 2; ++l) model.require(l, 2.0f);
  });
}

TEST_P(AnySizeOfGradients, CanBeWaitedForByAnyThreadWhileOneAddsThem) {
  run([&](int) {
    perseus_gradients_t* gradients = nullptr;
    REQUIRE(perseus_gradients_create(nullptr, &gradients) == PERSEUS_OK);
    constexpr int kCount = 300;
    std::atomic<bool> is_done{false};
    std::thread waiting([&] {
      while (!is_done) {
        for (int g = 0; g < kCount; ++g) perseus_gradients_wait(gradients, g, 0);
      }
    });
    std::vector<float> value(1);
    const int64_t one = 1;
    const perseus_tensor_t tensor = {value.data(), nullptr, &one, 1, PERSEUS_FLOAT32};
    for (int g = 0; g < kCount; ++g) {
      int32_t number = -1;
      REQUIRE(perseus_gradients_add(gradients, std::to_string(g).c_str(), &tensor, &number) ==
              PERSEUS_OK);
    }
    is_done = true;
    waiting.join();
    perseus_gradients_destroy(gradients);
  });
}

TEST_P(AnySizeOfGradients, AreWaitedForHoweverLong) {
  run([&](int rank) {
    Model model(1, nullptr);
    std::thread late;
    if (rank == 0) {
      late = std::thread([&] {
        usleep(20000);
        model.submit(0, 2.0f);
      });
      late.join();
    } else {
      model.submit(0, 2.0f);
    }
    REQUIRE(perseus_gradients_wait(model.handle, 0, INT64_MAX) == PERSEUS_OK);
    REQUIRE(perseus_gradients_wait_all(model.handle, INT64_MAX - 1) == PERSEUS_OK);
    model.require(0, 2.0f);
  });
}

TEST(Gradients, AreCheckedWhenTheyAreAdded) {
  perseus_gradients_options_t wrong{};
  wrong.struct_size = sizeof wrong;
  wrong.reduce_op = 77;
  perseus_gradients_t* gradients = nullptr;
  EXPECT_EQ(perseus_gradients_create(&wrong, &gradients), PERSEUS_INVALID_ARGUMENT);
  ASSERT_EQ(perseus_gradients_create(nullptr, &gradients), PERSEUS_OK);
  float value = 0.0f;
  int64_t shape = 1;
  int32_t number = -1;
  perseus_tensor_t tensor = {&value, nullptr, &shape, 1, 77};
  EXPECT_EQ(perseus_gradients_add(gradients, "g", &tensor, &number), PERSEUS_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("gradient 'g' of 'gradients': data type 77 is not supported"));
  tensor.dtype = PERSEUS_FLOAT32;
  tensor.input = nullptr;
  EXPECT_EQ(perseus_gradients_add(gradients, "g", &tensor, &number), PERSEUS_INVALID_ARGUMENT);
  tensor.input = &value;
  const std::pair<int64_t, std::string> wrong_shapes[] = {
      {-1, "is impossible"},
      {int64_t{1} << 62, "is impossible"},
      {int64_t{1} << 50, "needs more memory than a machine can have"}};
  for (const auto& [extent, why] : wrong_shapes) {
    shape = extent;
    EXPECT_EQ(perseus_gradients_add(gradients, "g", &tensor, &number), PERSEUS_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_has("gradient 'g' of 'gradients': its shape " + why));
  }
  shape = 1;
  EXPECT_EQ(perseus_gradients_add(gradients, "g", &tensor, &number), PERSEUS_OK);
  // It failed, so it was not created: others may still be added.
  EXPECT_EQ(perseus_gradients_submit(gradients, number, nullptr), PERSEUS_NOT_INITIALIZED);
  EXPECT_EQ(perseus_gradients_add(gradients, "h", &tensor, &number), PERSEUS_OK);
  perseus_gradients_destroy(gradients);
}

TEST_P(AnySizeOfGradients, ThatDifferFailOnEveryRankAndTheOthersGoOn) {
  if (size() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  run([&](int rank) {
    Told told;
    const auto options = telling(told);
    {
      Model model(2, &options);
      model.values.emplace_back(8);
      model.add(2, rank == 0 ? 8 : 4);
      for (int batch = 0; batch < 2; ++batch) {
        for (int l = 2; l >= 0; --l) model.submit(l, 1.0f);
        model.require(0, 1.0f);
        model.require(1, 1.0f);
        REQUIRE(perseus_gradients_wait(model.handle, 2, -1) == PERSEUS_MISMATCH);
        REQUIRE(last_error_has("gradients.layer2") && last_error_has("float32[4]"));
        REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_MISMATCH);
      }
    }
    REQUIRE(told.batch_statuses == std::vector<perseus_status_t>(2, PERSEUS_MISMATCH));
    REQUIRE(told.batch_message.find("float32[8]") != std::string::npos);
    REQUIRE(std::count(told.statuses.begin(), told.statuses.end(), PERSEUS_OK) == 4);
  });
}

// Every rank submits all that it can, and then waits and destroys.
TEST_P(AnySizeOfGradients, OfWhichRanksHaveRegisteredOthersFailOnAllOfThem) {
  if (size() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  const int odd = size() - 1;
  for (const int layers_of_odd : {1, 3}) {
    run([&](int rank) {
      Told told;
      const auto options = telling(told);
      {
        Model model(rank == odd ? layers_of_odd : 2, &options);
        for (int l = model.layers() - 1; l >= 0; --l) {
          // Later submissions are refused once the lists are known.
          const perseus_status_t status = perseus_gradients_submit(model.handle, l, nullptr);
          REQUIRE(status == PERSEUS_OK || status == PERSEUS_MISMATCH);
        }
        for (int l = 0; l < model.layers(); ++l) {
          REQUIRE(perseus_gradients_wait(model.handle, l, -1) == PERSEUS_MISMATCH);
        }
        REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_MISMATCH);
        REQUIRE(perseus_gradients_submit(model.handle, 0, nullptr) == PERSEUS_MISMATCH);
        const std::string what = layers_of_odd == 1
                                     ? "number 1 is 'layer1' on rank 0 and none on rank "
                                     : "number 2 is none on rank 0 and 'layer2' on rank ";
        REQUIRE(
            last_error_has("different gradients of 'gradients': " + what + std::to_string(odd)));
      }
      REQUIRE(told.batches == std::vector<int64_t>({0}));
      REQUIRE(told.batch_statuses == std::vector<perseus_status_t>({PERSEUS_MISMATCH}));
      // Each submitted gradient has ended, and before the batch has.
      REQUIRE(told.gradients_before[0] == told.gradients.size());
    });
  }
}

// A rank that learns of it in the middle of a batch has submitted what others have not.
TEST_P(AnySizeOfGradients, ThatDifferEndInTheMiddleOfABatch) {
  if (size() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  run([&](int rank) {
    Told told;
    const auto options = telling(told);
    {
      Model model(0, &options);
      for (int i = 0; i < 3; ++i) {
        const int l = rank == 0 ? i : 2 - i;
        float* const data = model.values.emplace_back(1).data();
        const int64_t one = 1;
        const perseus_tensor_t tensor = {data, nullptr, &one, 1, PERSEUS_FLOAT32};
        int32_t number = -1;
        REQUIRE(perseus_gradients_add(model.handle, std::to_string(l).c_str(), &tensor, &number) ==
                PERSEUS_OK);
      }
      // Rank 0's first is the others' last.
      REQUIRE(perseus_gradients_submit(model.handle, 0, nullptr) == PERSEUS_OK);
      REQUIRE(perseus_gradients_wait(model.handle, 0, -1) == PERSEUS_MISMATCH);
      REQUIRE(perseus_gradients_submit(model.handle, 1, nullptr) == PERSEUS_MISMATCH);
    }
    REQUIRE(told.statuses == std::vector<perseus_status_t>({PERSEUS_MISMATCH}));
    REQUIRE(told.batch_statuses == std::vector<perseus_status_t>({PERSEUS_MISMATCH}));
  });
}

TEST_P(AnySizeOfGradients, CannotBeWaitedForByACallback) {
  struct Watched {
    perseus_gradients_t* gradients = nullptr;
    std::vector<perseus_status_t> statuses;
    std::atomic<bool> is_told{false};
  };
  run([&](int) {
    Watched watched;
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    options.user = &watched;
    options.gradient_done = [](void* user, int32_t gradient, perseus_status_t, const char*) {
      auto& self = *static_cast<Watched*>(user);
      if (gradient != 1) return;
      perseus_gradients_submit(self.gradients, 0, nullptr);
      self.statuses = {perseus_gradients_wait(self.gradients, 0, -1),
                       perseus_gradients_wait(self.gradients, 0, 0), perseus_remove_process_set(7)};
      perseus_gradients_destroy(self.gradients);
      self.is_told = true;
    };
    {
      Model model(2, &options);
      watched.gradients = model.handle;
      model.submit(1, 1.0f);
      REQUIRE(perseus_gradients_wait(model.handle, 1, -1) == PERSEUS_OK);
      while (!watched.is_told) usleep(1000);
      REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_OK);
    }
    REQUIRE(watched.statuses[0] == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(watched.statuses[1] == PERSEUS_IN_PROGRESS || watched.statuses[1] == PERSEUS_OK);
    REQUIRE(watched.statuses[2] == PERSEUS_INVALID_ARGUMENT);
  });
}

TEST_P(AnySizeOfGradients, ThatWereRefusedAreNotWaitedForAsIfDone) {
  run([&](int) {
    perseus_gradients_options_t options{};
    options.struct_size = sizeof options;
    options.codec = 99;
    Model model(2, &options);
    REQUIRE(perseus_gradients_submit(model.handle, 1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_gradients_wait(model.handle, 1, -1) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_INVALID_ARGUMENT);
    Submission barrier(PERSEUS_BARRIER, "barrier");
    REQUIRE(barrier.run() == PERSEUS_OK);
  });
}

// A program that only checks waits must not go on with an unreduced gradient.
TEST_P(AnySizeOfGradients, ThatWereSubmittedTwiceGiveThatOnceTheFirstIsDone) {
  run([&](int rank) {
    Model model(3, nullptr);
    if (rank == 0) {
      model.submit(2, 1.0f);
      REQUIRE(perseus_gradients_submit(model.handle, 2, nullptr) == PERSEUS_INVALID_ARGUMENT);
      REQUIRE(
          last_error_has("a second time in batch 0, in which gradient 'layer0' of 'gradients' "
                         "has not been, nor 1 more"));
      if (size() > 1) {
        REQUIRE(perseus_gradients_wait(model.handle, 2, 10) == PERSEUS_IN_PROGRESS);
        REQUIRE(perseus_gradients_wait_all(model.handle, 10) == PERSEUS_IN_PROGRESS);
      }
    }
    Submission barrier(PERSEUS_BARRIER, "barrier");
    REQUIRE(barrier.run() == PERSEUS_OK);
    if (rank != 0) model.submit(2, 1.0f);
    REQUIRE(perseus_gradients_wait(model.handle, 2, -1) ==
            (rank == 0 ? PERSEUS_INVALID_ARGUMENT : PERSEUS_OK));
    for (int l = 1; l >= 0; --l) model.submit(l, 1.0f);
    for (int l = 0; l < 2; ++l) model.require(l, 1.0f);
    REQUIRE(perseus_gradients_wait_all(model.handle, -1) ==
            (rank == 0 ? PERSEUS_INVALID_ARGUMENT : PERSEUS_OK));
    for (int l = 2; l >= 0; --l) model.submit(l, 2.0f);
    for (int l = 0; l < 3; ++l) model.require(l, 2.0f);
    REQUIRE(perseus_gradients_wait_all(model.handle, -1) == PERSEUS_OK);
  });
}

// A slow backward reaches its last gradient after the ranks have compared theirs.
TEST_P(AnySizeOfGradients, ThatDifferAreNotTakenForDoneWhereTheyCameTooLate) {
  if (size() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  run([&](int rank) {
    Model model(rank == 0 ? 2 : 3, nullptr);
    REQUIRE(perseus_gradients_submit(model.handle, 1, nullptr) == PERSEUS_OK);
    REQUIRE(perseus_gradients_wait(model.handle, 1, -1) == PERSEUS_MISMATCH);
    REQUIRE(perseus_gradients_wait(model.handle, 0, -1) == PERSEUS_MISMATCH);
    REQUIRE(perseus_gradients_submit(model.handle, 0, nullptr) == PERSEUS_MISMATCH);
    REQUIRE(perseus_gradients_wait(model.handle, 0, -1) == PERSEUS_MISMATCH);
    REQUIRE(last_error_has("the ranks have registered different gradients"));
  });
}

TEST_P(AnySizeOfGradients, EndWithTheEngineAndAnotherObjectGoesOnAfterIt) {
  World(size()).run_bare([&](int rank) {
    Told told;
    const auto options = telling(told);
    Model early(1, &options);
    REQUIRE(perseus_gradients_submit(early.handle, 0, nullptr) == PERSEUS_NOT_INITIALIZED);
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    {
      Model model(2, &options);
      // No other rank submits these. At size 1 this rank's own would complete at once.
      if (rank == 0) model.submit(1, 1.0f);
      Submission barrier(PERSEUS_BARRIER, "barrier");
      REQUIRE(barrier.run() == PERSEUS_OK);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
      if (rank == 0) {
        REQUIRE(perseus_gradients_wait(model.handle, 1, -1) ==
                (size() == 1 ? PERSEUS_OK : PERSEUS_ABORTED));
      }
      REQUIRE(perseus_gradients_submit(model.handle, 0, nullptr) == PERSEUS_NOT_INITIALIZED);
    }
    REQUIRE(told.batches.empty());
    REQUIRE(told.gradients.size() == (rank == 0 ? 1 : 0));
  });
}

TEST_P(AnySizeOfGradients, AForkedChildCanDestroyThem) {
  run([&](int rank) {
    auto* const model = new Model(1, nullptr);
    if (rank == 0 && size() > 1) model->submit(0, 1.0f);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (perseus_gradients_wait_all(model->handle, -1) != PERSEUS_NOT_INITIALIZED) _exit(1);
      delete model;
      _exit(0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    if (rank != 0 || size() == 1) model->submit(0, 1.0f);
    model->require(0, 1.0f);
    delete model;
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnySizeOfGradients, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace perseus::test
