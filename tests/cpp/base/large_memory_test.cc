#include "base/large_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace perseus {
namespace {

TEST(LargeMemory, IsAsLargeAsAskedForAndCanBeFreed) {
  for (const size_t bytes : {size_t{1}, size_t{4} << 20, (size_t{4} << 20) + 1, size_t{9} << 20}) {
    std::byte* memory = allocate_large(bytes);
    ASSERT_NE(memory, nullptr);
    std::memset(memory, 7, bytes);
    prefer_huge_pages(memory, bytes);  // keeps what has been written
    EXPECT_EQ(memory[0], std::byte{7});
    EXPECT_EQ(memory[bytes - 1], std::byte{7});
    std::free(memory);
  }
}

TEST(LargeMemory, IsNoneWhereThereIsNone) { EXPECT_EQ(allocate_large(SIZE_MAX), nullptr); }

TEST(LargeMemory, TakesAnyAddress) {
  alignas(8) static std::byte memory[(5 << 20) + 3];
  prefer_huge_pages(memory + 1, sizeof memory - 1);
  memory[1] = std::byte{1};
  EXPECT_EQ(memory[1], std::byte{1});
}

}  // namespace
}  // namespace perseus
