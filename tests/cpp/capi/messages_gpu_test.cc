// perseus.h: messages whose ends are on a GPU.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "capi/gpu_memory.h"
#include "capi/world.h"
#include "perseus/perseus.h"

namespace perseus::test {
namespace {

constexpr size_t kSizes[] = {0, 1, 3'000, 1'200'000};  // floats; the last in several runs

// One end of a message of floats on a GPU.
struct GpuEnd {
  GpuEnd(const TestGpu& gpu, int peer, int tag, float* values, size_t count)
      : shape{static_cast<int64_t>(count)} {
    tensor = {values, values, shape, 1, PERSEUS_FLOAT32};
    raw.struct_size = sizeof raw;
    raw.peer = peer;
    raw.tag = tag;
    raw.tensor = &tensor;
    raw.device = PERSEUS_CUDA;
    raw.device_index = gpu.ordinal();
    raw.stream = gpu.stream();
  }
  GpuEnd(const GpuEnd&) = delete;

  int64_t shape[1];
  perseus_tensor_t tensor;
  perseus_transfer_t raw{};
};

perseus_handle_t begun(perseus_status_t (*call)(const perseus_transfer_t*, perseus_handle_t*),
                       const perseus_transfer_t& end) {
  perseus_handle_t handle = 0;
  REQUIRE(call(&end, &handle) == PERSEUS_OK);
  return handle;
}

perseus_status_t end_of(perseus_handle_t handle) {
  const perseus_status_t status = perseus_wait(handle, -1);
  perseus_release(handle);
  return status;
}

std::vector<float> values_from(size_t count, int seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(seed + static_cast<int>(i % 200));
  return values;
}

class GpuMessages : public testing::TestWithParam<int> {};  // the credit, in KiB

INSTANTIATE_TEST_SUITE_P(Credit, GpuMessages, testing::Values(0, 16, 16 << 10));

TEST_P(GpuMessages, GoFromGpuToGpu) {
  for (const int size : {1, 2}) {
    World(size, with_standin({{"PERSEUS_MESSAGE_CREDIT", std::to_string(GetParam())}}))
        .run([size](int rank) {
          const TestGpu gpu;
          const int to = (rank + 1) % size, from = (rank + size - 1) % size;
          int32_t bf16 = 0;
          REQUIRE(perseus_find_codec("bf16", &bf16) == PERSEUS_OK);
          for (const size_t count : kSizes) {
            for (const int32_t codec : {0, bf16}) {
              GpuValues<float> sent(gpu, values_from(count, rank)), got(gpu, count);
              GpuEnd out(gpu, to, 7, sent.data(), count), in(gpu, from, 7, got.data(), count);
              out.raw.codec = codec;
              const perseus_handle_t sending = begun(perseus_send, out.raw);
              const perseus_handle_t receiving = begun(perseus_recv, in.raw);
              REQUIRE(end_of(receiving) == PERSEUS_OK);
              REQUIRE(end_of(sending) == PERSEUS_OK);
              REQUIRE(got.read() == values_from(count, from));  // bf16 has 8 bits of them
            }
          }
        });
  }
}

TEST(GpuMessage, IsInMemoryOfItsDevice) {
  World(1, with_standin()).run([](int) {
    const TestGpu gpu;
    std::vector<float> host(4);
    GpuValues<float> values(gpu, host);
    perseus_handle_t handle = 0;
    GpuEnd wrong(gpu, 0, 1, host.data(), host.size());
    REQUIRE(perseus_send(&wrong.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("not on a GPU"));
    GpuEnd unknown(gpu, 0, 1, values.data(), host.size());
    unknown.raw.device = static_cast<perseus_device_t>(7);
    REQUIRE(perseus_send(&unknown.raw, &handle) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("there is no kind of device 7"));
    // A program that knows no devices says nothing of them.
    GpuEnd old(gpu, 0, 2, host.data(), host.size());
    old.raw.struct_size = offsetof(perseus_transfer_t, codec);
    const perseus_handle_t sending = begun(perseus_send, old.raw);
    REQUIRE(end_of(begun(perseus_recv, old.raw)) == PERSEUS_OK);
    REQUIRE(end_of(sending) == PERSEUS_OK);
  });
}

TEST(GpuMessage, EndsWithAnErrorIfTheGpuFails) {
  World(2, with_standin({{"PERSEUS_STANDIN_FAIL", "cuMemcpyDtoHAsync_v2:1=700"},
                         {"PERSEUS_STANDIN_ON_RANK", "0"}}))
      .run_bare([](int rank) {
        REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
        const TestGpu gpu;
        constexpr size_t kCount = 400'000;
        GpuValues<float> values(gpu, values_from(kCount, 1));
        GpuEnd end(gpu, 1 - rank, 3, values.data(), kCount);
        // Rank 1 may hear of it before it has asked for the message.
        perseus_handle_t handle = 0;
        perseus_status_t status = (rank == 0 ? perseus_send : perseus_recv)(&end.raw, &handle);
        if (status == PERSEUS_OK) status = end_of(handle);
        REQUIRE(status != PERSEUS_OK);
        REQUIRE(last_error_has("copying a tensor"));
        perseus_shutdown();
      });
}

}  // namespace
}  // namespace perseus::test
