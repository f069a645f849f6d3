#include "base/part_digests.h"

#include <gtest/gtest.h>

#include <string>

#include "base/sha256.h"

namespace perseus {
namespace {

std::string by_one(std::string_view message) {
  std::string digests;
  for (size_t at = 0; at < message.size(); at += kDigestedPartBytes) {
    const Sha256Digest digest = sha256(message.substr(at, kDigestedPartBytes));
    digests.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  return digests;
}

TEST(PartDigestsTest, AreThoseOfThePartsHoweverManyThreadsThereAre) {
  std::string message(25 << 20, '\0');
  uint32_t state = 1;
  for (char& byte : message) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  for (const size_t size : {size_t{0}, size_t{1}, kDigestedPartBytes, 4 * kDigestedPartBytes,
                            4 * kDigestedPartBytes + 1, 7 * kDigestedPartBytes - 1,
                            message.size() - 3, message.size()}) {
    const std::string_view some = std::string_view(message).substr(0, size);
    const std::string expected = by_one(some);
    for (const int threads : {-1, 1, 2, 100}) {
      EXPECT_EQ(digests_of_parts(some, threads), expected) << size << " bytes, " << threads;
    }
  }
}

}  // namespace
}  // namespace perseus
