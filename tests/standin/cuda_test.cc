// Tests that the stand-in for CUDA follows CUDA's rules and finds violations.
#include <gtest/gtest.h>

#include "device/cuda/moves.h"
#include "device/cuda/runtime.h"
#include "libraries.h"

namespace perseus::standin {
namespace {

constexpr size_t kBytes = 4096;

// A process that is expected to end is started as a new one, since this one may have threads and
// has read its settings.
class CudaStandInProcess : public testing::Test {
 protected:
  static void SetUpTestSuite() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

class CudaStandIn : public CudaStandInProcess {
 protected:
  Cuda cuda_;
  CuStream one_ = cuda_.new_stream();
  CuStream two_ = cuda_.new_stream();
  CuEvent event_ = cuda_.new_event();
  CuPointer memory_ = cuda_.device_memory(kBytes);
  unsigned char* host_ = cuda_.pinned_memory<unsigned char>(kBytes);

  void launch(const char* name, MoveTable& table, CuStream stream) {
    CuModule module = nullptr;
    CuFunction function = nullptr;
    require(cuda_.load_module(&module, "image"), "cuModuleLoadData");
    require(cuda_.find_function(&function, module, name), "cuModuleGetFunction");
    void* parameters[] = {&table};
    require(cuda_.launch(function, table.blocks, 1, 1, kMoveThreads, 1, 1, 0, stream, parameters,
                         nullptr),
            "cuLaunchKernel");
  }

  MoveTable table_of(CuPointer source, CuPointer target, uint64_t elements) {
    MoveTable table{};
    table.runs[0] = {reinterpret_cast<void*>(source), reinterpret_cast<void*>(target), elements, 0,
                     0};
    table.count = 1;
    table.blocks = 1;
    table.factor = 0.5;
    return table;
  }
};

TEST_F(CudaStandInProcess, WantsCuInitAndAContext) {
  EXPECT_EXIT(
      {
        CudaDriver driver;
        void* library = open_library("libcuda.so.1");
        find(library, "cuInit", driver.init);
        find(library, "cuDeviceGetCount", driver.device_count);
        find(library, "cuMemAlloc_v2", driver.allocate);
        int count = 0;
        CuPointer pointer = 0;
        require(driver.device_count(&count), "cuDeviceGetCount", 3);
        require(driver.init(0), "cuInit");
        require(driver.device_count(&count), "cuDeviceGetCount");
        require(count, "the number of devices", 4);
        require(driver.allocate(&pointer, 1), "cuMemAlloc", 201);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(CudaStandIn, DescribesItsDevices) {
  char name[64];
  EXPECT_EQ(cuda_.device_name(name, sizeof(name), 3), 0);
  EXPECT_STREQ(name, "Perseus stand-in");
  EXPECT_EQ(cuda_.device_name(name, sizeof(name), 4), 101);
  CuUuid zero{};
  CuUuid one{};
  EXPECT_EQ(cuda_.device_uuid(&zero, 0), 0);
  EXPECT_EQ(cuda_.device_uuid(&one, 1), 0);
  EXPECT_NE(std::memcmp(&zero, &one, sizeof(zero)), 0);
  int version = 0;
  EXPECT_EQ(cuda_.driver_version(&version), 0);
  EXPECT_EQ(version, 13000);
  CudaRuntime runtime;
  find(open_library("libcudart.so.13"), "cudaRuntimeGetVersion", runtime.runtime_version);
  EXPECT_EQ(runtime.runtime_version(&version), 0);
  EXPECT_EQ(version, 13000);
}

TEST_F(CudaStandIn, TellsWhereMemoryLies) {
  unsigned type = 0;
  int ordinal = -1;
  EXPECT_EQ(cuda_.pointer_attribute(&type, kCuPointerMemoryType, memory_ + kBytes - 1), 0);
  EXPECT_EQ(type, kCuMemoryTypeDevice);
  EXPECT_EQ(cuda_.pointer_attribute(&ordinal, kCuPointerDeviceOrdinal, memory_), 0);
  EXPECT_EQ(ordinal, 0);
  const auto pinned = reinterpret_cast<CuPointer>(host_);
  EXPECT_EQ(cuda_.pointer_attribute(&type, kCuPointerMemoryType, pinned), 0);
  EXPECT_EQ(type, 1u);
  int local = 0;
  const auto unknown = reinterpret_cast<CuPointer>(&local);
  EXPECT_EQ(cuda_.pointer_attribute(&type, kCuPointerMemoryType, unknown), 1);
}

TEST_F(CudaStandIn, CopiesNoSoonerThanItsTurn) {
  std::memset(host_, 7, kBytes);
  EXPECT_EQ(cuda_.query_event(event_), 0);
  cuda_.hold(one_);
  require(cuda_.copy_to_device(memory_, host_, kBytes, one_), "cuMemcpyHtoDAsync");
  require(cuda_.record_event(event_, one_), "cuEventRecord");
  EXPECT_EQ(cuda_.query_event(event_), kCuNotReady);
  EXPECT_EQ(*reinterpret_cast<unsigned char*>(memory_), 0xdb);
  cuda_.release(one_);
  cuda_.wait_for(event_);
  EXPECT_EQ(*reinterpret_cast<unsigned char*>(memory_), 7);
}

TEST_F(CudaStandIn, WaitsForTheRecordBeforeTheWait) {
  cuda_.hold(one_);
  require(cuda_.record_event(event_, one_), "cuEventRecord");
  require(cuda_.stream_wait_event(two_, event_, 0), "cuStreamWaitEvent");
  CuEvent after = cuda_.new_event();
  require(cuda_.record_event(after, two_), "cuEventRecord");
  EXPECT_EQ(cuda_.query_event(after), kCuNotReady);
  // The stream does not wait for a later record.
  cuda_.release(one_);
  cuda_.hold(nullptr);
  require(cuda_.record_event(event_, nullptr), "cuEventRecord");
  cuda_.wait_for(after);
  EXPECT_EQ(cuda_.query_event(event_), kCuNotReady);
  cuda_.release(nullptr);
}

TEST_F(CudaStandIn, RunsKernelsWithTheTableOfTheCall) {
  CuPointer target = cuda_.device_memory(kBytes);
  const float value = 3;
  MoveTable table = table_of(memory_, target, 1);
  cuda_.hold(one_);
  require(cuda_.copy_to_device(memory_, &value, sizeof(value), one_), "cuMemcpyHtoDAsync");
  launch("perseus_move_float32_float32", table, one_);
  table.runs[0].target = nullptr;
  cuda_.release(one_);
  cuda_.synchronize();
  EXPECT_EQ(*reinterpret_cast<float*>(target), 1.5f);
}

TEST_F(CudaStandIn, KnowsOnlyPerseussKernels) {
  CuModule module = nullptr;
  CuFunction function = nullptr;
  EXPECT_EQ(cuda_.load_module(&module, nullptr), 1);
  ASSERT_EQ(cuda_.load_module(&module, "image"), 0);
  EXPECT_EQ(cuda_.find_function(&function, module, "perseus_move_float32_bfloat16"), 0);
  EXPECT_EQ(cuda_.find_function(&function, module, "perseus_copy"), 0);
  EXPECT_EQ(cuda_.find_function(&function, module, "perseus_move_float31"), 500);
}

TEST_F(CudaStandIn, FindsWorkThatNoEventOrders) {
  EXPECT_DEATH(
      {
        cuda_.fill(memory_, 1, 100, one_);
        cuda_.copy_to_host(host_, memory_ + 99, 1, two_);
      },
      "cuMemsetD8Async writes and cuMemcpyDtoHAsync_v2 reads 1 bytes, stream 1 and stream 2, not "
      "ordered by any event");
  // Even if the first one was done long ago, without the host checking.
  EXPECT_DEATH(
      {
        CuPointer target = cuda_.device_memory(kBytes);
        MoveTable table = table_of(memory_, target, kBytes);
        launch("perseus_copy", table, one_);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        cuda_.fill(memory_, 1, 1, two_);
      },
      "perseus_copy reads and cuMemsetD8Async writes");
  EXPECT_DEATH(
      {
        cuda_.copy_to_host(host_, memory_, 1, one_);
        cuda_.host_reads(host_, 1);
      },
      "cuMemcpyDtoHAsync_v2 writes and the host reads 1 bytes, stream 1 and the host");
}

TEST_F(CudaStandIn, AcceptsWorkThatIsOrdered) {
  // Ordered by an event between streams, and by order within one.
  cuda_.fill(memory_, 1, kBytes, one_);
  cuda_.fill(memory_, 2, kBytes, one_);
  cuda_.record_event(event_, one_);
  cuda_.stream_wait_event(two_, event_, 0);
  cuda_.copy_to_host(host_, memory_, kBytes, two_);
  // Two readers, and writers of different bytes.
  cuda_.copy_to_host(host_ + kBytes - 1, memory_, 0, one_);
  MoveTable table = table_of(memory_, cuda_.device_memory(kBytes), kBytes);
  launch("perseus_copy", table, one_);
  // Ordered by a host that saw it done.
  cuda_.record_event(event_, two_);
  cuda_.wait_for(event_);
  cuda_.host_reads(host_, kBytes);
  EXPECT_EQ(host_[kBytes - 1], 2);
  cuda_.host_writes(host_, kBytes);
  cuda_.copy_to_device(memory_, host_, 0, one_);
  cuda_.synchronize();
  cuda_.fill(memory_, 3, kBytes, nullptr);
}

TEST_F(CudaStandIn, ForgetsWhatWasDoneToFreedMemory) {
  for (int i = 0; i < 100; ++i) {
    CuPointer memory = cuda_.device_memory(64);
    CuStream stream = i % 2 == 0 ? one_ : two_;
    cuda_.fill(memory, 1, 64, stream);
    cuda_.record_event(event_, stream);
    cuda_.wait_for(event_);
    ASSERT_EQ(cuda_.free(memory), 0);
  }
}

TEST_F(CudaStandIn, FindsMemoryThatIsFreedTooEarly) {
  EXPECT_DEATH(
      {
        cuda_.fill(memory_, 1, 1, one_);
        cuda_.free(memory_);
      },
      "cuMemsetD8Async writes and cuMemFree_v2 writes");
}

TEST_F(CudaStandIn, FindsMemoryOfTheWrongKind) {
  EXPECT_DEATH(cuda_.copy_to_host(host_, memory_ + 1, kBytes, one_), "at 1 of an allocation");
  EXPECT_DEATH(cuda_.copy_to_host(reinterpret_cast<void*>(memory_), memory_, 1, one_),
               "a device's memory as the host's");
  EXPECT_DEATH(cuda_.copy_to_device(reinterpret_cast<CuPointer>(host_), host_, 1, one_),
               "the host's memory as a device's");
  EXPECT_DEATH(cuda_.fill(reinterpret_cast<CuPointer>(this), 0, 1, one_), "did not allocate");
  EXPECT_DEATH(
      {
        cuda_.make_current(1);
        cuda_.fill(memory_, 0, 1, nullptr);
      },
      "of device 0 on device 1");
}

TEST_F(CudaStandIn, WantsTheStreamsDevice) {
  cuda_.make_current(1);
  EXPECT_EQ(cuda_.record_event(cuda_.new_event(), one_), 400);
  EXPECT_EQ(cuda_.destroy_stream(one_), 0);
  EXPECT_EQ(cuda_.destroy_stream(one_), 400);
  CuContext context = nullptr;
  EXPECT_EQ(cuda_.pop_context(&context), 0);
}

TEST_F(CudaStandIn, FailsWhereItIsTold) {
  cuda_.fail_call("cuMemsetD8Async", 2, 700);
  EXPECT_EQ(cuda_.fill(memory_, 1, 1, one_), 0);
  EXPECT_EQ(cuda_.fill(memory_, 1, 1, one_), 700);
  EXPECT_EQ(cuda_.fill(memory_, 1, 1, one_), 0);
  cuda_.set_capturing(one_, 1);
  int status = 0;
  EXPECT_EQ(cuda_.capture_status(one_, &status), 0);
  EXPECT_NE(status, kCuNotCapturing);
}

TEST_F(CudaStandInProcess, FailsWhereItIsToldByTheEnvironment) {
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_FAIL", "cuEventCreate:2=1,cuEventQuery:*=700", 1);
        setenv("PERSEUS_STANDIN_ON_RANK", "3", 1);
        setenv("PERSEUS_RANK", "3", 1);
        setenv("PERSEUS_STANDIN_DELAY_US", "100", 1);
        Cuda cuda;
        CuEvent event = cuda.new_event();
        require(cuda.create_event(&event, 0), "cuEventCreate", 1);
        require(cuda.query_event(event), "cuEventQuery", 700);
        require(cuda.query_event(event), "cuEventQuery", 700);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        setenv("PERSEUS_STANDIN_FAIL", "cuEventCreate:1=1", 1);
        setenv("PERSEUS_STANDIN_ON_RANK", "3", 1);
        setenv("PERSEUS_RANK", "2", 1);
        Cuda cuda;
        cuda.new_event();
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace perseus::standin
