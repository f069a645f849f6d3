// Tests when GPU memory for results is reused. CUDA is the stand-in of tests/standin, which ends
// the process if memory is accessed out of order.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/cuda/gpu.h"

namespace perseus {
namespace {

constexpr size_t kMiB = 1 << 20;

class ResultMemory : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(current_.status().is_ok());
    ASSERT_EQ(gpu_.driver().create_stream(&stream_, kCuStreamNonBlocking, 0), kCuSuccess);
  }

  std::byte* allocate(size_t bytes) {
    const auto allocated = gpu_.allocate(bytes);
    EXPECT_TRUE(allocated.is_ok()) << allocated.status().message();
    return allocated.is_ok() ? allocated.value() : nullptr;
  }
  // Queues work on the memory, as its consumer does.
  void use(std::byte* memory, CuStream stream) {
    static const int value = 7;
    const auto target = reinterpret_cast<CuPointer>(memory);
    ASSERT_EQ(gpu_.driver().copy_to_device(target, &value, sizeof value, stream), kCuSuccess);
  }
  // Returns whether the memory is still allocated in CUDA.
  bool is_allocated(const std::byte* memory) const {
    return gpu_.check_memory(memory, 1, 1).is_ok();
  }

  // One of the stand-in's own functions.
  template <typename... Arguments>
  static void standin(const char* name, Arguments... arguments) {
    void* library = dlopen(PERSEUS_STANDIN_FOLDER "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library, nullptr);
    reinterpret_cast<void (*)(Arguments...)>(dlsym(library, name))(arguments...);
  }

  Gpu& gpu_ = *Gpu::get(PERSEUS_STANDIN_FOLDER, 0).value();
  const CurrentContext current_{gpu_};
  CuStream stream_ = nullptr;
};

TEST_F(ResultMemory, FreedOnAStreamIsGivenOutOnceThatIsDone) {
  std::byte* first = allocate(1000);
  standin("perseus_standin_hold", stream_);
  use(first, stream_);
  EXPECT_TRUE(Gpu::free_on_stream(first, stream_));
  std::byte* second = allocate(1000);
  EXPECT_NE(second, first);
  standin("perseus_standin_release", stream_);
  standin("perseus_standin_synchronize");
  std::byte* third = allocate(1000);
  EXPECT_EQ(third, first);
  // Used by another stream, which only the pool has ordered after the first.
  use(third, nullptr);
  standin("perseus_standin_synchronize");
  EXPECT_TRUE(Gpu::free(second));
  EXPECT_TRUE(Gpu::free(third));
}

TEST_F(ResultMemory, FreedWithoutAStreamGoesBackToCuda) {
  std::byte* memory = allocate(1000);
  EXPECT_TRUE(is_allocated(memory));
  EXPECT_TRUE(Gpu::free(memory));
  EXPECT_FALSE(is_allocated(memory));
  EXPECT_FALSE(Gpu::free(memory));
  EXPECT_FALSE(Gpu::free_on_stream(memory, stream_));
}

TEST_F(ResultMemory, FreedOnAStreamThatIsCapturedGoesBackToCuda) {
  std::byte* memory = allocate(1000);
  standin("perseus_standin_set_capturing", stream_, 1);
  EXPECT_TRUE(Gpu::free_on_stream(memory, stream_));
  EXPECT_FALSE(is_allocated(memory));
}

TEST_F(ResultMemory, OfLargeResultsGoesBackToCuda) {
  std::byte* memory = allocate(64 * kMiB + 1);
  EXPECT_TRUE(Gpu::free_on_stream(memory, stream_));
  EXPECT_FALSE(is_allocated(memory));
}

TEST_F(ResultMemory, ThatLiesIdleGoesBackWhenTheGpuIsFull) {
  std::byte* idle = allocate(kMiB);
  std::byte* used = allocate(2 * kMiB);
  EXPECT_TRUE(Gpu::free_on_stream(idle, stream_));
  standin("perseus_standin_synchronize");
  standin("perseus_standin_hold", stream_);
  use(used, stream_);
  EXPECT_TRUE(Gpu::free_on_stream(used, stream_));
  standin("perseus_standin_fail", "cuMemAlloc_v2", 1, kCuOutOfMemory);
  std::byte* next = allocate(4 * kMiB);
  EXPECT_FALSE(is_allocated(idle));
  EXPECT_TRUE(is_allocated(used));
  EXPECT_TRUE(Gpu::free(next));
  standin("perseus_standin_release", stream_);
}

TEST_F(ResultMemory, ThatLiesIdleIsBounded) {
  std::vector<std::byte*> all(6);
  for (std::byte*& memory : all) memory = allocate(64 * kMiB);
  for (std::byte* memory : all) EXPECT_TRUE(Gpu::free_on_stream(memory, stream_));
  const auto kept =
      std::ranges::count_if(all, [&](std::byte* memory) { return is_allocated(memory); });
  EXPECT_GE(kept, 3);
  EXPECT_LE(kept, 4);
  standin("perseus_standin_synchronize");
  for (int i = 0; i < kept; ++i) EXPECT_TRUE(Gpu::free(allocate(64 * kMiB)));
}

}  // namespace
}  // namespace perseus
