// Tensors on GPUs, end to end: real processes whose CUDA is the stand-in of tests/standin. Copies
// take their time there, and memory that is touched out of order ends the process.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "capi/gpu_memory.h"
#include "capi/world.h"

namespace perseus::test {
namespace {

Environment with_standin(Environment more = {}) {
  Environment environment = {{"PERSEUS_CUDA_LIBRARY_PATH", PERSEUS_STANDIN_FOLDER},
                             {"PERSEUS_STANDIN_DELAY_US", "300"}};
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

template <typename T>
std::vector<T> filled(size_t count, const std::function<double(size_t)>& value) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(value(i));
  return values;
}

struct Way {
  int size;
  const char* operations;  // PERSEUS_GPU_OPERATIONS
};

class OnGpu : public testing::TestWithParam<Way> {
 protected:
  int size() const { return GetParam().size; }
  bool is_staged() const { return GetParam().operations == std::string("staged"); }
  void run(const std::function<void(int)>& body, Environment more = {}) {
    more.emplace_back("PERSEUS_GPU_OPERATIONS", GetParam().operations);
    World(size(), with_standin(std::move(more))).run(body);
  }
  // 1 + 2 + ... + size
  double sum_of_ranks() const { return size() * (size() + 1) / 2.0; }
};

TEST_P(OnGpu, AllreduceSumsFloatsOfManySizes) {
  run([&](int rank) {
    const TestGpu gpu;
    for (const int64_t elements : {0, 1, 5, 1000, 100'003, 1'000'000}) {
      GpuValues<float> input(gpu, filled<float>(elements, [&](size_t i) {
                               return (rank + 1) * static_cast<double>(i % 97);
                             }));
      GpuValues<float> output(gpu, elements);
      const std::vector<int64_t> shape = {elements};
      Submission sum(PERSEUS_ALLREDUCE, "sum" + std::to_string(elements));
      sum.tensor(input.data(), output.data(), shape, PERSEUS_FLOAT32);
      REQUIRE(on(gpu, sum).run() == PERSEUS_OK);
      const std::vector<float> result = output.read();
      for (int64_t i = 0; i < elements; ++i) REQUIRE(result[i] == sum_of_ranks() * (i % 97));
    }
  });
}

TEST_P(OnGpu, AverageInPlaceIsScaledBeforeAndAfter) {
  run([&](int rank) {
    const TestGpu gpu;
    GpuValues<double> data(gpu, std::vector<double>(777, rank + 1));
    const std::vector<int64_t> shape = {7, 111};
    Submission average(PERSEUS_ALLREDUCE, "average");
    average.raw.reduce_op = PERSEUS_AVERAGE;
    average.raw.prescale = 0.5;
    average.raw.postscale = 4.0;
    average.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT64);
    REQUIRE(on(gpu, average).run() == PERSEUS_OK);
    const double expected = 2.0 * sum_of_ranks() / size();
    for (const double value : data.read()) REQUIRE(std::abs(value - expected) < 1e-12);
  });
}

TEST_P(OnGpu, IntegersAreSummedAsIntegers) {
  run([&](int rank) {
    const TestGpu gpu;
    const int64_t large = int64_t{1} << 60;
    GpuValues<int64_t> data(gpu, std::vector<int64_t>(100, rank == 0 ? large + 1 : 1));
    const std::vector<int64_t> shape = {100};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_INT64);
    REQUIRE(on(gpu, sum).run() == PERSEUS_OK);
    for (const int64_t value : data.read()) REQUIRE(value == large + size());
  });
}

TEST_P(OnGpu, ManyTensorsInFlightAreMergedAndAllRight) {
  run([&](int rank) {
    const TestGpu gpu;
    constexpr int kTensors = 100;
    const std::vector<int64_t> shape = {123};
    std::vector<std::unique_ptr<GpuValues<float>>> data;
    for (int t = 0; t < kTensors; ++t) data.push_back(std::make_unique<GpuValues<float>>(gpu, 123));
    for (int step = 0; step < 3; ++step) {
      std::vector<perseus_handle_t> handles;
      for (int i = 0; i < kTensors; ++i) {
        const int t = (i * 7 + rank * 13) % kTensors;  // each rank in an order of its own
        data[t]->write(std::vector<float>(123, static_cast<float>(rank + t)));
        Submission sum(PERSEUS_ALLREDUCE, "g" + std::to_string(t));
        sum.tensor(data[t]->data(), data[t]->data(), shape, PERSEUS_FLOAT32);
        handles.push_back(on(gpu, sum).submit());
      }
      for (const perseus_handle_t handle : handles) {
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        perseus_release(handle);
      }
      for (int t = 0; t < kTensors; ++t) {
        const float expected = static_cast<float>(size() * t + size() * (size() - 1) / 2);
        for (const float value : data[t]->read()) REQUIRE(value == expected);
      }
    }
  });
}

TEST_P(OnGpu, BroadcastGivesTheRootsDataInPlaceAndBeside) {
  run([&](int rank) {
    const TestGpu gpu;
    const std::vector<int64_t> shape = {50'001};
    for (int root = 0; root < size(); ++root) {
      for (const bool in_place : {true, false}) {
        GpuValues<int32_t> data(gpu, std::vector<int32_t>(50'001, rank));
        GpuValues<int32_t> beside(gpu, 50'001);
        GpuValues<int32_t>& result = in_place ? data : beside;
        Submission broadcast(PERSEUS_BROADCAST, "b");
        broadcast.raw.root = root;
        broadcast.tensor(data.data(), result.data(), shape, PERSEUS_INT32);
        REQUIRE(on(gpu, broadcast).run() == PERSEUS_OK);
        for (const int32_t value : result.read()) REQUIRE(value == root);
      }
    }
  });
}

TEST_P(OnGpu, AllgatherJoinsUnevenFirstDimensions) {
  run([&](int rank) {
    const TestGpu gpu;
    const std::vector<int64_t> shape = {rank, 3};
    GpuValues<int16_t> data(gpu, std::vector<int16_t>(rank * 3, static_cast<int16_t>(rank)));
    Submission gather(PERSEUS_ALLGATHER, "gather");
    gather.tensor(data.data(), nullptr, shape, PERSEUS_INT16);
    const perseus_handle_t handle = on(gpu, gather).submit();
    const perseus_result_t result = wait_for_result(handle);
    const int64_t rows = size() * (size() - 1) / 2;
    REQUIRE(result.rank == 2 && result.shape[0] == rows && result.shape[1] == 3);
    REQUIRE(result.device == PERSEUS_CUDA && result.device_index == 0);
    const auto values = GpuValues<int16_t>::read_from(gpu, result.data, rows * 3);
    for (int from = 0, at = 0; from < size(); ++from) {
      for (int i = 0; i < from * 3; ++i) REQUIRE(values[at++] == from);
    }
    perseus_release(handle);
  });
}

TEST_P(OnGpu, AlltoallSwapsRowsBySplits) {
  run([&](int rank) {
    const TestGpu gpu;
    // Rank r sends i + 1 rows of value r * 100 + i to rank i.
    std::vector<int64_t> splits(size());
    std::vector<float> rows;
    for (int i = 0; i < size(); ++i) {
      splits[i] = i + 1;
      rows.insert(rows.end(), i + 1, static_cast<float>(rank * 100 + i));
    }
    const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size())};
    GpuValues<float> data(gpu, rows);
    Submission alltoall(PERSEUS_ALLTOALL, "alltoall");
    alltoall.raw.splits = splits.data();
    alltoall.raw.split_count = size();
    alltoall.tensor(data.data(), nullptr, shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, alltoall).submit();
    const perseus_result_t result = wait_for_result(handle);
    REQUIRE(result.shape[0] == size() * (rank + 1));
    REQUIRE(result.received_split_count == size());
    const auto values = GpuValues<float>::read_from(gpu, result.data, result.shape[0]);
    for (int from = 0, at = 0; from < size(); ++from) {
      REQUIRE(result.received_splits[from] == rank + 1);
      for (int i = 0; i <= rank; ++i)
        REQUIRE(values[at++] == static_cast<float>(from * 100 + rank));
    }
    perseus_release(handle);
  });
}

TEST_P(OnGpu, ReduceScatterGivesTheFirstRanksOneRowMore) {
  run([&](int rank) {
    const TestGpu gpu;
    const int64_t rows = size() * 2 + 1;
    GpuValues<float> input(
        gpu, filled<float>(rows * 4, [&](size_t i) { return static_cast<double>(i) + rank; }));
    const std::vector<int64_t> shape = {rows, 4};
    Submission scatter(PERSEUS_REDUCESCATTER, "scatter");
    scatter.raw.prescale = 2.0;
    scatter.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = on(gpu, scatter).submit();
    const perseus_result_t result = wait_for_result(handle);
    const int64_t own = rank == 0 ? 3 : 2;
    REQUIRE(result.rank == 2 && result.shape[0] == own && result.shape[1] == 4);
    const int64_t first = rank == 0 ? 0 : (rank * 2 + 1) * 4;
    const auto values = GpuValues<float>::read_from(gpu, result.data, own * 4);
    for (int64_t i = 0; i < own * 4; ++i) {
      const double expected = 2.0 * (size() * (first + i) + size() * (size() - 1) / 2.0);
      REQUIRE(values[i] == static_cast<float>(expected));
    }
    perseus_release(handle);
  });
}

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

// Nobody waits on the host: the framework's stream is held until the caller has gone on.
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
    GpuValues<float> data(gpu, filled<float>(1000, [](size_t i) { return i % 13 - 6.0; }));
    const std::vector<int64_t> shape = {1000};
    Submission adasum(PERSEUS_ALLREDUCE, "adasum");
    adasum.raw.reduce_op = PERSEUS_ADASUM;
    adasum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    REQUIRE(on(gpu, adasum).run() == PERSEUS_OK);
    const std::vector<float> result = data.read();
    for (size_t i = 0; i < 1000; ++i) REQUIRE(std::abs(result[i] - (i % 13 - 6.0)) < 1e-5);
  });
}

TEST_P(OnGpu, ACodecMakesTheWireSmaller) {
  run([&](int rank) {
    const TestGpu gpu;
    int32_t codec = 0;
    REQUIRE(perseus_find_codec("bf16", &codec) == PERSEUS_OK);
    GpuValues<float> data(gpu, std::vector<float>(5000, static_cast<float>(rank + 1)));
    const std::vector<int64_t> shape = {5000};
    Submission sum(PERSEUS_ALLREDUCE, "coded");
    sum.raw.codec = codec;
    sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    REQUIRE(on(gpu, sum).run() == PERSEUS_OK);
    for (const float value : data.read()) REQUIRE(value == static_cast<float>(sum_of_ranks()));
  });
}

TEST_P(OnGpu, NaNIsFoundAndNamed) {
  run(
      [&](int rank) {
        const TestGpu gpu;
        std::vector<float> values(3000, 1.0f);
        if (rank == size() - 1) values[1234] = NAN;
        GpuValues<float> data(gpu, values);
        const std::vector<int64_t> shape = {3000};
        Submission sum(PERSEUS_ALLREDUCE, "sum");
        sum.raw.prescale = 0.5;
        sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
        REQUIRE(on(gpu, sum).run() == PERSEUS_NON_FINITE);
        const std::string message = perseus_last_error();
        REQUIRE(message.find("rank " + std::to_string(size() - 1)) != std::string::npos);
        REQUIRE(message.find("element 1234") != std::string::npos);
      },
      {{"PERSEUS_ALLREDUCE_NANCHECK", "raise"}});
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

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const char* operations : {"nccl", "staged"}) {
    for (int size = 1; size <= 4; ++size) ways.push_back({size, operations});
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Ways, OnGpu, testing::ValuesIn(all_ways()), [](const auto& info) {
  return std::to_string(info.param.size) + "Ranks" + info.param.operations;
});

}  // namespace
}  // namespace perseus::test
