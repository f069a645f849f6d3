#include "base/streaming_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace perseus {
namespace {

TEST(StreamingCopyTest, CopiesEveryByteAndNoOtherAtAnyAlignment) {
  constexpr unsigned char kUntouched = 0xee;
  std::vector<unsigned char> source(1000);
  std::iota(source.begin(), source.end(), 0);
  for (size_t from : {0, 1, 63}) {
    for (size_t to = 0; to < 66; ++to) {
      for (size_t bytes : {0, 1, 63, 64, 65, 127, 128, 700}) {
        std::vector<unsigned char> target(1000, kUntouched);
        streaming_copy(target.data() + to, source.data() + from, bytes);
        for (size_t i = 0; i < target.size(); ++i) {
          const bool is_copied = i >= to && i < to + bytes;
          ASSERT_EQ(target[i], is_copied ? source[from + i - to] : kUntouched)
              << from << " " << to << " " << bytes << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace perseus
