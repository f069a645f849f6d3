// Behaviour that only tensors on GPUs have, end to end: real processes whose CUDA is the stand-in
// of tests/standin. Copies take their time there, and memory that is touched out of order ends the
// process. collectives_test.cc tests what GPUs share with the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "capi/gpu_memory.h"
#include "capi/world.h"
#include "device/cpu/kernels.h"

namespace perseus::test {
namespace {

struct GpuWay {
  int size;
  const char* operations;  // PERSEUS_GPU_OPERATIONS
};

class OnGpu : public testing::TestWithParam<GpuWay> {
 protected:
  int size() const { return GetParam().size; }
  bool is_staged() const { return GetParam().operations == std::string("staged"); }
  void run(const std::function<void(int)>& body, Environment more = {}) {
    more.emplace_back("PERSEUS_GPU_OPERATIONS", GetParam().operations);
    World(size(), with_standin(std::move(more))).run(body);
  }
};

TEST_P(OnGpu, ResultsThatTheLibraryAllocatesOutliveTheHandle) {
  run([&](int) {
    const TestGpu gpu;
    GpuValues<float> input(gpu, std::vector<float>(1000, 1.0f));
    const std::vector<int64_t> shape = {1000};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, sum).submit();
    REQUIRE(wait_for_result(handle).data != nullptr);
    void* taken = perseus_take_result(handle, 0);
    perseus_release(handle);
    for (const float value : GpuValues<float>::read_from(gpu, taken, 1000)) {
      REQUIRE(value == static_cast<float>(size()));
    }
    perseus_free(taken);
  });
}

// Rows of `value`, gathered from all ranks into memory of the library.
void* gathered(const TestGpu& gpu, const std::string& name, float value) {
  GpuValues<float> input(gpu, std::vector<float>(1000, value));
  const std::vector<int64_t> shape = {1000};
  Submission gather(PERSEUS_ALLGATHER, name);
  gather.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32);
  const perseus_handle_t handle = on(gpu, gather).submit();
  REQUIRE(wait_for_result(handle).shape[0] == 1000 * perseus_size());
  void* taken = perseus_take_result(handle, 0);
  perseus_release(handle);
  return taken;
}

TEST_P(OnGpu, AResultFreedOnAStreamIsLeftAloneUntilThatIsDone) {
  run([&](int) {
    const TestGpu gpu, consumer;
    const size_t count = 1000 * size();
    GpuValues<float> copy(consumer, count);
    void* first = gathered(gpu, "gather", 1.0f);
    {
      const TestGpu::Current current(consumer);
      standin<void(void*)>("perseus_standin_hold")(consumer.stream());
      REQUIRE_CUDA(cuda().copy_on_device(reinterpret_cast<CuPointer>(copy.data()),
                                         reinterpret_cast<CuPointer>(first), count * sizeof(float),
                                         consumer.stream()));
    }
    perseus_free_on_stream(first, consumer.stream());
    void* second = gathered(gpu, "gather", 2.0f);
    REQUIRE(second != first);
    standin<void(void*)>("perseus_standin_release")(consumer.stream());
    for (const float value : copy.read()) REQUIRE(value == 1.0f);
    void* third = gathered(gpu, "gather", 3.0f);
    REQUIRE(third == first);
    for (const float value : GpuValues<float>::read_from(gpu, second, count))
      REQUIRE(value == 2.0f);
    for (const float value : GpuValues<float>::read_from(gpu, third, count)) REQUIRE(value == 3.0f);
    perseus_free(second);
    perseus_free_on_stream(third, gpu.stream());
  });
}

TEST_P(OnGpu, ResultsFreedOnAStreamTakeNoneOfCudasMemory) {
  run([&](int rank) {
    const TestGpu gpu;
    const int64_t rows = 4 * size() + 1;
    GpuValues<float> input(gpu, std::vector<float>(rows * 100, 1.0f));
    const std::vector<int64_t> own_shape = {rank + 1, 100}, shape = {rows, 100};
    const std::vector<int64_t> splits(size(), 4);
    const auto step = [&] {
      for (const perseus_operation_t kind :
           {PERSEUS_ALLGATHER, PERSEUS_ALLTOALL, PERSEUS_REDUCESCATTER}) {
        Submission operation(kind, "x");
        operation.raw.splits = splits.data();
        operation.raw.split_count = size();
        operation.tensor(input.data(), nullptr, kind == PERSEUS_ALLGATHER ? own_shape : shape,
                         PERSEUS_FLOAT32);
        const perseus_handle_t handle = on(gpu, operation).submit();
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        perseus_free_on_stream(perseus_take_result(handle, 0), gpu.stream());
        perseus_release(handle);
        gpu.synchronize();
      }
    };
    for (int i = 0; i < 3; ++i) step();
    for (const char* function : {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc"}) {
      standin<void(const char*, int, int)>("perseus_standin_fail")(function, 0, 2);
    }
    for (int i = 0; i < 5; ++i) step();
  });
}

TEST_P(OnGpu, TensorsOnSeveralGpusOfAProcessTravelTogether) {
  if (!is_staged()) GTEST_SKIP() << "a communicator is of one GPU";
  run([&](int rank) {
    const TestGpu first(0), second(1);
    const std::vector<int64_t> shape = {500};
    std::vector<std::unique_ptr<GpuValues<float>>> data;
    std::vector<perseus_handle_t> handles;
    for (int t = 0; t < 8; ++t) {
      const TestGpu& gpu = (t + rank) % 2 == 0 ? first : second;
      data.push_back(std::make_unique<GpuValues<float>>(
          gpu, std::vector<float>(500, static_cast<float>(t + rank))));
      Submission sum(PERSEUS_ALLREDUCE, "t" + std::to_string(t));
      sum.tensor(data[t]->data(), data[t]->data(), shape, PERSEUS_FLOAT32);
      handles.push_back(on(gpu, sum).submit());
    }
    for (int t = 0; t < 8; ++t) {
      REQUIRE(perseus_wait(handles[t], -1) == PERSEUS_OK);
      const float expected = static_cast<float>(size() * t + size() * (size() - 1) / 2);
      for (const float value : data[t]->read()) REQUIRE(value == expected);
      perseus_release(handles[t]);
    }
  });
}

// No thread waits on the host: the framework's stream is held until the caller has gone on.
TEST_P(OnGpu, AStreamWaitsForResultsInPlaceOfTheHost) {
  if (is_staged()) GTEST_SKIP() << "the host has to wait for what passes through it";
  run([&](int) {
    const TestGpu gpu;
    GpuValues<float> input(gpu, std::vector<float>(1000, 1.0f));
    GpuValues<float> output(gpu, 1000), copy(gpu, 1000);
    const std::vector<int64_t> shape = {1000};
    standin<void(void*)>("perseus_standin_hold")(gpu.stream());
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(input.data(), output.data(), shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, sum).submit();
    REQUIRE(perseus_wait(handle, 50) == PERSEUS_IN_PROGRESS);
    const TestGpu::Current current(gpu);
    CuStream consumer = nullptr;
    REQUIRE_CUDA(cuda().create_stream(&consumer, kCuStreamNonBlocking, 0));
    REQUIRE(perseus_wait_on_stream(handle, consumer, -1) == PERSEUS_OK);
    REQUIRE(perseus_poll(handle) == 0);
    REQUIRE_CUDA(cuda().copy_on_device(reinterpret_cast<CuPointer>(copy.data()),
                                       reinterpret_cast<CuPointer>(output.data()),
                                       1000 * sizeof(float), consumer));
    standin<void(void*)>("perseus_standin_release")(gpu.stream());
    REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
    perseus_release(handle);
    standin<void()>("perseus_standin_synchronize")();
    for (const float value : copy.read()) REQUIRE(value == static_cast<float>(size()));
  });
}

TEST_P(OnGpu, ANameMayBeUsedAgainOnceAStreamWaits) {
  if (is_staged()) GTEST_SKIP() << "the host has to wait for what passes through it";
  run([&](int) {
    const TestGpu gpu;
    GpuValues<float> data(gpu, std::vector<float>(1000, 1.0f));
    const std::vector<int64_t> shape = {1000};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    on(gpu, sum);
    const auto hold = standin<void(void*)>("perseus_standin_hold");
    const auto release = standin<void(void*)>("perseus_standin_release");
    hold(gpu.stream());
    std::vector<perseus_handle_t> handles;
    perseus_handle_t second = 0;
    for (int i = 0; i < 3; ++i) {
      handles.push_back(sum.submit());
      REQUIRE(perseus_submit(&sum.raw, &second) == PERSEUS_DUPLICATE_NAME);
      REQUIRE(perseus_wait_on_stream(handles.back(), gpu.stream(), -1) == PERSEUS_OK);
      REQUIRE(perseus_poll(handles.back()) == 0);
    }
    release(gpu.stream());
    for (const perseus_handle_t handle : handles) {
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    }
    const auto expected = static_cast<float>(size() * size() * size());
    for (const float value : data.read()) REQUIRE(value == expected);
    // The name is free as often as it was taken, and no more.
    hold(gpu.stream());
    handles = {sum.submit()};
    REQUIRE(perseus_submit(&sum.raw, &second) == PERSEUS_DUPLICATE_NAME);
    release(gpu.stream());
    REQUIRE(perseus_wait(handles[0], -1) == PERSEUS_OK);
    perseus_release(handles[0]);
  });
}

TEST_P(OnGpu, TheHostWaitsInPlaceOfAStreamThatIsBeingCaptured) {
  run([&](int) {
    const TestGpu gpu;
    GpuValues<float> data(gpu, std::vector<float>(1000, 1.0f));
    const std::vector<int64_t> shape = {1000};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, sum).submit();
    const auto set_capturing = standin<void(void*, int)>("perseus_standin_set_capturing");
    set_capturing(gpu.stream(), 1);
    REQUIRE(perseus_wait_on_stream(handle, gpu.stream(), -1) == PERSEUS_OK);
    REQUIRE(perseus_poll(handle) == 1);
    set_capturing(gpu.stream(), 0);
    perseus_release(handle);
  });
}

TEST_P(OnGpu, WaitingOnAStreamTellsOfErrors) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  run([&](int rank) {
    const TestGpu gpu;
    GpuValues<float> data(gpu, std::vector<float>(100 + rank, 1.0f));
    const std::vector<int64_t> shape = {100 + rank};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, sum).submit();
    REQUIRE(perseus_wait_on_stream(handle, gpu.stream(), -1) == PERSEUS_MISMATCH);
    perseus_release(handle);
  });
}

TEST_P(OnGpu, AdasumOfEqualGradientsIsTheGradient) {
  run([&](int) {
    const TestGpu gpu;
    std::vector<float> gradient(1000);
    for (size_t i = 0; i < 1000; ++i) gradient[i] = static_cast<float>(i % 13) - 6.0f;
    GpuValues<float> data(gpu, gradient);
    const std::vector<int64_t> shape = {1000};
    Submission adasum(PERSEUS_ALLREDUCE, "adasum");
    adasum.raw.reduce_op = PERSEUS_ADASUM;
    adasum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    REQUIRE(on(gpu, adasum).run() == PERSEUS_OK);
    const std::vector<float> result = data.read();
    for (size_t i = 0; i < 1000; ++i) REQUIRE(std::abs(result[i] - gradient[i]) < 1e-5);
  });
}

// NCCL gets the part that float16 can hold.
TEST_P(OnGpu, FactorsThatFloat16CannotHoldAreExactAllTheSame) {
  struct Case {
    double value, postscale;
  };
  run([&](int) {
    const TestGpu gpu;
    for (const auto& [value, postscale] :
         {Case{1e-3, 1e5}, Case{1e4, 1e-8}, Case{3.0, 1.0 / 3}, Case{-5.0, -0.7}}) {
      for (const perseus_operation_t kind : {PERSEUS_ALLREDUCE, PERSEUS_REDUCESCATTER}) {
        for (const size_t tensors : {1, 3}) {
          const std::vector<int64_t> shape = {501};
          uint16_t half = 0;
          convert(&half, DataType::kFloat16, &value, DataType::kFloat64, 1);
          std::vector<std::unique_ptr<GpuValues<uint16_t>>> inputs;
          Submission sum(kind, "sum");
          sum.raw.postscale = postscale;
          for (size_t t = 0; t < tensors; ++t) {
            inputs.push_back(
                std::make_unique<GpuValues<uint16_t>>(gpu, std::vector<uint16_t>(501, half)));
            sum.tensor(inputs.back()->data(), nullptr, shape, PERSEUS_FLOAT16);
          }
          const perseus_handle_t handle = on(gpu, sum).submit();
          const perseus_result_t result = wait_for_result(handle);
          double held = 0, made = 0;
          convert(&held, DataType::kFloat64, &half, DataType::kFloat16, 1);
          const double expected = held * size() * postscale;
          const auto count = static_cast<size_t>(result.shape[0]);
          for (const uint16_t bits : GpuValues<uint16_t>::read_from(gpu, result.data, count)) {
            convert(&made, DataType::kFloat64, &bits, DataType::kFloat16, 1);
            REQUIRE(std::abs(made - expected) <= 2e-3 * std::abs(expected));
          }
          perseus_release(handle);
        }
      }
    }
  });
}

TEST_P(OnGpu, ARankThatHasJoinedHelpsTheOthers) {
  run([&](int rank) {
    if (rank > 0 || size() == 1) {
      const TestGpu gpu;
      GpuValues<float> data(gpu, std::vector<float>(2000, 1.0f));
      const std::vector<int64_t> shape = {2000};
      Submission sum(PERSEUS_ALLREDUCE, "sum");
      sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
      REQUIRE(on(gpu, sum).run() == PERSEUS_OK);
      const float expected = static_cast<float>(size() == 1 ? 1 : size() - 1);
      for (const float value : data.read()) REQUIRE(value == expected);
    }
    Submission join(PERSEUS_JOIN, "join");
    REQUIRE(join.run() == PERSEUS_OK);
  });
}

TEST_P(OnGpu, CpuAndGpuUnderOneNameIsAMismatchThatSaysSo) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  run([&](int rank) {
    const TestGpu gpu;
    GpuValues<float> there(gpu, std::vector<float>(100, 1.0f));
    std::vector<float> here(100, 1.0f);
    const std::vector<int64_t> shape = {100};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    if (rank == 1) {
      sum.tensor(there.data(), there.data(), shape, PERSEUS_FLOAT32);
      on(gpu, sum);
    } else {
      sum.tensor(here.data(), here.data(), shape, PERSEUS_FLOAT32);
    }
    REQUIRE(sum.run() == PERSEUS_MISMATCH);
    const std::string message = perseus_last_error();
    REQUIRE(message.find("rank 1 submitted memory of a GPU, rank 0 memory of the CPU") !=
            std::string::npos);
  });
}

TEST_P(OnGpu, WrongMemoryIsRefusedOnAllRanks) {
  run([&](int) {
    const TestGpu gpu, other(1);
    GpuValues<float> elsewhere(other, std::vector<float>(10, 1.0f));
    std::vector<float> here(10, 1.0f);
    const std::vector<int64_t> shape = {10};
    const auto submit = [&](const void* input, int ordinal) {
      Submission sum(PERSEUS_ALLREDUCE, "sum");
      sum.tensor(input, nullptr, shape, PERSEUS_FLOAT32);
      on(gpu, sum).raw.device_index = ordinal;
      return sum.run();
    };
    REQUIRE(submit(here.data(), 0) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "its memory is not on a GPU") != nullptr);
    REQUIRE(submit(elsewhere.data(), 0) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "its memory is on GPU 1") != nullptr);
    REQUIRE(submit(elsewhere.data(), 99) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "there is no GPU 99") != nullptr);
    GpuValues<float> there(gpu, std::vector<float>(11, 1.0f));
    const auto* bytes = reinterpret_cast<const std::byte*>(there.data());
    REQUIRE(submit(bytes + 2, 0) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "at a multiple of 4 bytes") != nullptr);
    REQUIRE(submit(bytes + 4, 0) == PERSEUS_OK);
    REQUIRE(submit(bytes + 8, 0) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "ends before its 40 bytes do") != nullptr);
  });
}

TEST_P(OnGpu, ACopyThatFailsIsAnErrorOnAllRanks) {
  if (!is_staged()) GTEST_SKIP() << "NCCL copies nothing to the host";
  run(
      [&](int rank) {
        const TestGpu gpu;
        GpuValues<float> data(gpu, std::vector<float>(100'000, 1.0f));
        const std::vector<int64_t> shape = {100'000};
        Submission sum(PERSEUS_ALLREDUCE, "sum");
        sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
        const perseus_status_t status = on(gpu, sum).run();
        REQUIRE(status != PERSEUS_OK);
        const std::string message = perseus_last_error();
        REQUIRE(message.find("copying a tensor") != std::string::npos);
        if (rank != size() - 1) {
          REQUIRE(status == PERSEUS_ABORTED);
          REQUIRE(message.find("rank " + std::to_string(size() - 1)) != std::string::npos);
        }
      },
      {{"PERSEUS_STANDIN_FAIL", "cuMemcpyDtoHAsync_v2:1=700"},
       {"PERSEUS_STANDIN_ON_RANK", std::to_string(size() - 1)}});
}

std::vector<GpuWay> gpu_ways() {
  std::vector<GpuWay> ways;
  for (const char* operations : {"nccl", "staged"}) {
    for (int size = 1; size <= 4; ++size) ways.push_back({size, operations});
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Ways, OnGpu, testing::ValuesIn(gpu_ways()), [](const auto& info) {
  return std::to_string(info.param.size) + "Ranks" + info.param.operations;
});

}  // namespace
}  // namespace perseus::test
