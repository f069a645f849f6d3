// The collectives end to end, wherever tensors are: in memory of the CPU over each transport, and
// on GPUs, which are the stand-in of tests/standin, by NCCL and staged.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "capi/gpu_memory.h"
#include "capi/world.h"
#include "sanitizers.h"

namespace perseus::test {
namespace {

// Where a rank's tensors are.
class Place {
 public:
  explicit Place(perseus_device_t device) {
    if (device == PERSEUS_CUDA) gpu_ = std::make_unique<TestGpu>();
  }
  const TestGpu* gpu() const { return gpu_.get(); }
  Submission& at(Submission& submission) const {
    return gpu_ != nullptr ? on(*gpu_, submission) : submission;
  }
  template <typename T>
  std::vector<T> read(const void* data, size_t count) const {
    if (gpu_ != nullptr) return GpuValues<T>::read_from(*gpu_, data, count);
    const auto* values = static_cast<const T*>(data);
    return {values, values + count};
  }

 private:
  std::unique_ptr<TestGpu> gpu_;
};

// Values of a tensor.
template <typename T>
class Values {
 public:
  Values(const Place& place, std::vector<T> values) : place_(place), here_(std::move(values)) {
    if (place.gpu() != nullptr) there_ = std::make_unique<GpuValues<T>>(*place.gpu(), here_);
  }
  T* data() { return there_ != nullptr ? there_->data() : here_.data(); }
  std::vector<T> read() { return place_.read<T>(data(), here_.size()); }

 private:
  const Place& place_;
  std::vector<T> here_;
  std::unique_ptr<GpuValues<T>> there_;
};

// The largest has many shards, or with a sanitizer, which slows down a test's own loops, a few.
constexpr int64_t kSizes[] = {0, 1, 5, 1000, 100'003, kIsSanitized ? 700'000 : 2'000'000};

struct Way {
  std::string name;
  int size;
  Environment environment;
  perseus_device_t device = PERSEUS_CPU;
};

class Collectives : public testing::TestWithParam<Way> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(int rank, const Place& place)>& body) {
    World(size(), GetParam().environment).run([&](int rank) {
      body(rank, Place(GetParam().device));
    });
  }
  // 1 + 2 + ... + size
  double sum_of_ranks() const { return size() * (size() + 1) / 2.0; }
};

TEST_P(Collectives, AllreduceSumsFloatsOfManySizes) {
  run([&](int rank, const Place& place) {
    const double of_ranks = sum_of_ranks();
    for (const int64_t elements : kSizes) {
      std::vector<float> own(elements);
      for (int64_t i = 0; i < elements; ++i) own[i] = static_cast<float>((rank + 1) * (i % 97));
      Values<float> input(place, own), output(place, std::vector<float>(elements, -1.0f));
      const std::vector<int64_t> shape = {elements};
      Submission sum(PERSEUS_ALLREDUCE, "sum" + std::to_string(elements));
      sum.tensor(input.data(), output.data(), shape, PERSEUS_FLOAT32);
      REQUIRE(place.at(sum).run() == PERSEUS_OK);
      const std::vector<float> result = output.read();
      for (int64_t i = 0; i < elements; ++i) REQUIRE(result[i] == of_ranks * (i % 97));
    }
  });
}

TEST_P(Collectives, AverageInPlaceIsScaledBeforeAndAfter) {
  run([&](int rank, const Place& place) {
    Values<double> data(place, std::vector<double>(777, rank + 1));
    const std::vector<int64_t> shape = {7, 111};
    Submission average(PERSEUS_ALLREDUCE, "average");
    average.raw.reduce_op = PERSEUS_AVERAGE;
    average.raw.prescale = 0.5;
    average.raw.postscale = 4.0;
    average.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT64);
    REQUIRE(place.at(average).run() == PERSEUS_OK);
    const double expected = 2.0 * sum_of_ranks() / size();
    for (const double value : data.read()) REQUIRE(std::abs(value - expected) < 1e-12);
  });
}

TEST_P(Collectives, IntegersAreSummedAsIntegers) {
  run([&](int rank, const Place& place) {
    const int64_t large = int64_t{1} << 60;
    Values<int64_t> data(place, std::vector<int64_t>(100, rank == 0 ? large + 1 : 1));
    const std::vector<int64_t> shape = {100};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_INT64);
    REQUIRE(place.at(sum).run() == PERSEUS_OK);
    for (const int64_t value : data.read()) REQUIRE(value == large + size());
  });
}

TEST_P(Collectives, ManyTensorsInFlightAreMergedAndAllRight) {
  run([&](int rank, const Place& place) {
    constexpr int kTensors = 200;
    const std::vector<int64_t> shape = {123};
    for (int step = 0; step < 3; ++step) {
      std::vector<std::unique_ptr<Values<float>>> data(kTensors);
      std::vector<perseus_handle_t> handles;
      for (int i = 0; i < kTensors; ++i) {
        const int t = (i * 7 + rank * 13) % kTensors;  // each rank in an order of its own
        const std::vector<float> own(123, static_cast<float>(rank + t));
        data[t] = std::make_unique<Values<float>>(place, own);
        Submission sum(PERSEUS_ALLREDUCE, "g" + std::to_string(t));
        sum.tensor(data[t]->data(), data[t]->data(), shape, PERSEUS_FLOAT32);
        handles.push_back(place.at(sum).submit());
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

TEST_P(Collectives, BroadcastGivesTheRootsDataInPlaceAndBeside) {
  run([&](int rank, const Place& place) {
    const std::vector<int64_t> shape = {50'001};
    for (int root = 0; root < size(); ++root) {
      for (const bool in_place : {true, false}) {
        Values<int32_t> data(place, std::vector<int32_t>(50'001, rank));
        Values<int32_t> beside(place, std::vector<int32_t>(50'001, -1));
        Values<int32_t>& result = in_place ? data : beside;
        Submission broadcast(PERSEUS_BROADCAST, "b");
        broadcast.raw.root = root;
        broadcast.tensor(data.data(), result.data(), shape, PERSEUS_INT32);
        REQUIRE(place.at(broadcast).run() == PERSEUS_OK);
        for (const int32_t value : result.read()) REQUIRE(value == root);
      }
    }
  });
}

TEST_P(Collectives, AllgatherJoinsUnevenFirstDimensions) {
  run([&](int rank, const Place& place) {
    const std::vector<int64_t> shape = {rank, 3};
    Values<int16_t> data(place, std::vector<int16_t>(rank * 3, static_cast<int16_t>(rank)));
    Submission gather(PERSEUS_ALLGATHER, "gather");
    gather.tensor(data.data(), nullptr, shape, PERSEUS_INT16);
    const perseus_handle_t handle = place.at(gather).submit();
    const perseus_result_t result = wait_for_result(handle);
    const int64_t rows = size() * (size() - 1) / 2;
    REQUIRE(result.rank == 2 && result.shape[0] == rows && result.shape[1] == 3);
    REQUIRE(result.device == GetParam().device);
    REQUIRE(result.device_index == (result.device == PERSEUS_CUDA ? 0 : -1));
    const auto values = place.read<int16_t>(result.data, rows * 3);
    for (int from = 0, at = 0; from < size(); ++from) {
      for (int i = 0; i < from * 3; ++i) REQUIRE(values[at++] == from);
    }
    perseus_release(handle);
  });
}

TEST_P(Collectives, AlltoallSwapsRowsBySplits) {
  run([&](int rank, const Place& place) {
    // Rank r sends i + 1 rows of value r * 100 + i to rank i.
    std::vector<int64_t> splits(size());
    std::vector<float> rows;
    for (int i = 0; i < size(); ++i) {
      splits[i] = i + 1;
      rows.insert(rows.end(), i + 1, static_cast<float>(rank * 100 + i));
    }
    const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size())};
    Values<float> data(place, rows);
    Submission alltoall(PERSEUS_ALLTOALL, "alltoall");
    alltoall.raw.splits = splits.data();
    alltoall.raw.split_count = size();
    alltoall.tensor(data.data(), nullptr, shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = place.at(alltoall).submit();
    const perseus_result_t result = wait_for_result(handle);
    REQUIRE(result.shape[0] == size() * (rank + 1));
    REQUIRE(result.received_split_count == size());
    const auto values = place.read<float>(result.data, result.shape[0]);
    for (int from = 0, at = 0; from < size(); ++from) {
      REQUIRE(result.received_splits[from] == rank + 1);
      for (int i = 0; i <= rank; ++i)
        REQUIRE(values[at++] == static_cast<float>(from * 100 + rank));
    }
    perseus_release(handle);
  });
}

TEST_P(Collectives, ReduceScatterGivesTheFirstRanksOneRowMore) {
  run([&](int rank, const Place& place) {
    const int64_t rows = size() * 2 + 1;
    std::vector<float> own(rows * 4);
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i + rank);
    Values<float> input(place, own);
    const std::vector<int64_t> shape = {rows, 4};
    Submission scatter(PERSEUS_REDUCESCATTER, "scatter");
    scatter.raw.prescale = 2.0;
    scatter.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32);
    const perseus_handle_t handle = place.at(scatter).submit();
    const perseus_result_t result = wait_for_result(handle);
    REQUIRE(result.rank == 2 && result.shape[0] == 2 + (rank == 0) && result.shape[1] == 4);
    const int64_t first = rank == 0 ? 0 : (rank * 2 + 1) * 4;
    const auto values = place.read<float>(result.data, result.shape[0] * 4);
    for (int64_t i = 0; i < result.shape[0] * 4; ++i) {
      const double expected = 2.0 * (size() * (first + i) + size() * (size() - 1) / 2.0);
      REQUIRE(values[i] == static_cast<float>(expected));
    }
    perseus_release(handle);
  });
}

TEST_P(Collectives, CodecsAreCloseToTheSum) {
  run([&](int rank, const Place& place) {
    const std::vector<int64_t> shape = {10'001};
    for (const char* name : {"fp16", "bf16"}) {
      std::vector<float> own(10'001);
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = std::sin(static_cast<float>(i)) * static_cast<float>(rank + 1);
      }
      Values<float> data(place, own);
      Submission sum(PERSEUS_ALLREDUCE, name);
      REQUIRE(perseus_find_codec(name, &sum.raw.codec) == PERSEUS_OK);
      sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
      REQUIRE(place.at(sum).run() == PERSEUS_OK);
      const std::vector<float> result = data.read();
      for (size_t i = 0; i < result.size(); ++i) {
        const double expected = std::sin(static_cast<float>(i)) * sum_of_ranks();
        REQUIRE(std::abs(result[i] - expected) < 0.02 * sum_of_ranks());
      }
    }
  });
}

std::vector<Way> all_ways() {
  std::vector<Way> all;
  for (const int size : {1, 2, 3, 4}) all.push_back({"shm", size, {}});
  for (const int size : {2, 3, 4}) all.push_back({"tcp", size, {{"PERSEUS_TRANSPORT", "tcp"}}});
  all.push_back({"small_shards",
                 3,
                 {{"PERSEUS_ALLREDUCE_SHARD", "0.0625"}, {"PERSEUS_ALLREDUCE_FUSION", "0.01"}}});
  for (const char* operations : {"nccl", "staged"}) {
    for (const int size : {1, 2, 3, 4}) {
      const Environment environment = with_standin({{"PERSEUS_GPU_OPERATIONS", operations}});
      all.push_back({operations, size, environment, PERSEUS_CUDA});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ways, Collectives, testing::ValuesIn(all_ways()), [](const auto& info) {
  return info.param.name + "_" + std::to_string(info.param.size) + "_ranks";
});

}  // namespace
}  // namespace perseus::test
