// PERSEUS_ALLREDUCE_NANCHECK for tensors on GPUs: by NCCL, where kernels look, in halves as well,
// and staged, where the host does. The findings and messages are the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "capi/gpu_memory.h"
#include "capi/world.h"

namespace perseus::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct CheckedWay {
  std::string name;
  int size;
  Environment environment;
  bool is_nccl = true;
};

class GpuNanCheck : public testing::TestWithParam<CheckedWay> {
 protected:
  int size() const { return GetParam().size; }
  int last() const { return size() - 1; }
  // On two hosts, which only the hierarchical way looks at.
  void run(const char* check, const std::function<void(int rank, const TestGpu& gpu)>& body) {
    Environment environment = with_standin(GetParam().environment);
    environment.emplace_back("PERSEUS_ALLREDUCE_NANCHECK", check);
    World(size(), environment).run_bare([&](int rank) {
      setenv("PERSEUS_HOSTNAME", 2 * rank < size() ? "first" : "second", 1);
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      body(rank, TestGpu());
      const auto calls = standin<int(const char*)>("perseus_standin_calls");
      const int by_nccl = calls("ncclAllReduce") + calls("ncclReduceScatter");
      REQUIRE((by_nccl > 0) == GetParam().is_nccl);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    });
  }
};

// A float tensor, and the result of reducing it.
class Reduction {
 public:
  Reduction(const TestGpu& gpu, perseus_operation_t kind, const std::string& name,
            const std::vector<float>& values, bool is_in_place = true)
      : input_(gpu, values),
        beside_(gpu, is_in_place ? 0 : values.size()),
        shape_{static_cast<int64_t>(values.size())},
        submission_(kind, name) {
    on(gpu, submission_);
    float* output = is_in_place ? input_.data() : beside_.data();
    if (kind == PERSEUS_REDUCESCATTER) output = nullptr;
    submission_.tensor(input_.data(), output, shape_, PERSEUS_FLOAT32);
  }
  perseus_submission_t& raw() { return submission_.raw; }
  void submit() { handle_ = submission_.submit(); }
  perseus_status_t wait() {
    const perseus_status_t status = perseus_wait(handle_, -1);
    text_ = status == PERSEUS_OK ? "" : perseus_last_error();
    perseus_release(handle_);
    return status;
  }
  perseus_status_t run() {
    submit();
    return wait();
  }
  bool says(const std::string& text) const { return text_.find(text) != std::string::npos; }
  std::vector<float> input() const { return input_.read(); }
  std::vector<float> beside() const { return beside_.read(); }

 private:
  GpuValues<float> input_, beside_;
  const std::vector<int64_t> shape_;
  Submission submission_;
  perseus_handle_t handle_ = 0;
  std::string text_;
};

std::string name_of(int rank) { return "rank " + std::to_string(rank) + " submitted "; }

TEST_P(GpuNanCheck, NamesTheRankAndThePlace) {
  run("raise", [&](int rank, const TestGpu& gpu) {
    for (const bool is_in_place : {true, false}) {
      std::vector<float> values(3000, 1.0f);
      if (rank == last()) {
        values[1234] = NAN;
        values[1235] = kInfinity;
      }
      Reduction sum(gpu, PERSEUS_ALLREDUCE, "sum", values, is_in_place);
      sum.raw().prescale = 0.5;
      REQUIRE(sum.run() == PERSEUS_NON_FINITE);
      REQUIRE(sum.says(name_of(last()) + "NaN"));
      REQUIRE(sum.says("first at element 1234"));
    }
  });
}

TEST_P(GpuNanCheck, TellsMergedTensorsApart) {
  run("raise", [&](int rank, const TestGpu& gpu) {
    constexpr int kTensors = 20;
    for (int step = 0; step < 3; ++step) {
      std::vector<std::unique_ptr<Reduction>> sums;
      for (int t = 0; t < kTensors; ++t) {
        std::vector<float> values(100 + 7 * t, 1.0f);
        if (t % 5 == 2 && rank == 0) values[t] = t % 2 ? NAN : -kInfinity;
        sums.push_back(std::make_unique<Reduction>(gpu, PERSEUS_ALLREDUCE, "t" + std::to_string(t),
                                                   values, t % 3 == 0));
        sums.back()->submit();
      }
      for (int t = 0; t < kTensors; ++t) {
        if (t % 5 == 2) {
          REQUIRE(sums[t]->wait() == PERSEUS_NON_FINITE);
          REQUIRE(sums[t]->says(name_of(0) + (t % 2 ? "NaN" : "infinity")));
          REQUIRE(sums[t]->says("first at element " + std::to_string(t)));
          continue;
        }
        REQUIRE(sums[t]->wait() == PERSEUS_OK);
        const std::vector<float> result = t % 3 == 0 ? sums[t]->input() : sums[t]->beside();
        for (const float value : result) REQUIRE(value == static_cast<float>(size()));
      }
    }
  });
}

TEST_P(GpuNanCheck, SaysWhenTheReductionMadeIt) {
  if (size() == 1) GTEST_SKIP() << "one value makes none";
  run("raise", [&](int, const TestGpu& gpu) {
    std::vector<float> values(2001, 1.0f);
    values[1999] = std::numeric_limits<float>::max();
    Reduction sum(gpu, PERSEUS_ALLREDUCE, "sum", values);
    REQUIRE(sum.run() == PERSEUS_NON_FINITE);
    REQUIRE(sum.says("the reduction of finite values made infinity"));
    REQUIRE(sum.says("first at element 1999"));
  });
}

TEST_P(GpuNanCheck, OfMinimaInfinityIsAPart) {
  run("raise", [&](int, const TestGpu& gpu) {
    Reduction least(gpu, PERSEUS_ALLREDUCE, "least", std::vector<float>(100, kInfinity));
    least.raw().reduce_op = PERSEUS_MIN;
    REQUIRE(least.run() == PERSEUS_OK);
    for (const float value : least.input()) REQUIRE(value == kInfinity);
  });
}

TEST_P(GpuNanCheck, PutsZerosAndLeavesTheInputAlone) {
  run("zero", [&](int rank, const TestGpu& gpu) {
    for (const bool is_in_place : {true, false}) {
      std::vector<float> values(777, 2.0f);
      if (rank == last()) values[5] = values[776] = NAN;
      values[6] = std::numeric_limits<float>::max();
      Reduction sum(gpu, PERSEUS_ALLREDUCE, "sum", values, is_in_place);
      REQUIRE(sum.run() == PERSEUS_OK);
      const std::vector<float> result = is_in_place ? sum.input() : sum.beside();
      for (size_t i = 0; i < result.size(); ++i) {
        float expected = 2.0f * static_cast<float>(size());
        if (i == 5 || i == 776) expected -= 2.0f;
        if (i == 6) expected = size() == 1 ? values[6] : 0.0f;
        REQUIRE(result[i] == expected);
      }
      if (!is_in_place) REQUIRE(std::isnan(sum.input()[5]) == (rank == last()));
    }
  });
}

TEST_P(GpuNanCheck, LooksAtWhatIsScattered) {
  run("raise", [&](int rank, const TestGpu& gpu) {
    for (const int more : {0, 1}) {  // as many rows for each, or more for the first
      const size_t count = 600 * static_cast<size_t>(size()) + more;
      std::vector<float> values(count, 1.0f);
      Reduction good(gpu, PERSEUS_REDUCESCATTER, "good", values);
      REQUIRE(good.run() == PERSEUS_OK);
      if (rank == 0) values[count - 3] = -kInfinity;
      Reduction bad(gpu, PERSEUS_REDUCESCATTER, "bad", values);
      REQUIRE(bad.run() == PERSEUS_NON_FINITE);
      REQUIRE(bad.says(name_of(0) + "infinity"));
      REQUIRE(bad.says("first at element " + std::to_string(count - 3)));
      if (size() == 1) continue;
      values.assign(count, 1.0f);
      values[count - 2] = std::numeric_limits<float>::max();
      Reduction made(gpu, PERSEUS_REDUCESCATTER, "made", values);
      REQUIRE(made.run() == PERSEUS_NON_FINITE);
      REQUIRE(made.says("the reduction of finite values made infinity"));
      REQUIRE(made.says("first at element " + std::to_string(count - 2)));
    }
  });
}

std::vector<CheckedWay> checked_ways() {
  std::vector<CheckedWay> ways;
  for (int size = 1; size <= 4; ++size) {
    const std::string ranks = std::to_string(size) + "Ranks";
    ways.push_back({ranks + "ByNccl", size, {{"PERSEUS_GPU_OPERATIONS", "nccl"}}});
    ways.push_back({ranks + "Staged", size, {{"PERSEUS_GPU_OPERATIONS", "staged"}}, false});
  }
  ways.push_back(
      {"InHalves",
       4,
       {{"PERSEUS_GPU_OPERATIONS", "nccl"}, {"PERSEUS_ALLREDUCE_MODE", "hierarchical"}}});
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuNanCheck, testing::ValuesIn(checked_ways()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace perseus::test
