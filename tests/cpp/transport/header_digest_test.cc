#include "transport/tcp/header_digest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace perseus {
namespace {

FrameHeader header(uint64_t operation, uint64_t offset) {
  FrameHeader header;
  header.magic_and_kind = FrameHeader::kMagic | FrameHeader::kData;
  header.length = 64;
  header.size = 1 << 20;
  header.offset = offset;
  header.tag = {operation, 1, 2};
  return header;
}

uint64_t digest(const std::vector<FrameHeader>& headers, Mac key = Mac{1, 2, 3}) {
  HeaderDigest digest(key);
  for (const FrameHeader& header : headers) digest.add(header);
  return digest.take();
}

TEST(HeaderDigestTest, DependsOnEachHeaderOnTheirOrderAndOnTheKey) {
  const FrameHeader a = header(1, 0), b = header(1, 64), c = header(2, 0);
  const std::set<uint64_t> digests = {digest({}),        digest({a}),
                                      digest({a, b}),    digest({b, a}),
                                      digest({a, a}),    digest({a, b, c}),
                                      digest({a, c, b}), digest({b, c}),
                                      digest({a, c}),    digest({a, b}, Mac{3, 2, 1})};
  EXPECT_EQ(digests.size(), 10u);
  EXPECT_EQ(digest({a, b, c}), digest({a, b, c}));
}

TEST(HeaderDigestTest, DependsOnEachBitOfAHeader) {
  std::set<uint64_t> digests = {digest({header(1, 0)})};
  for (size_t bit = 0; bit < 8 * sizeof(FrameHeader); ++bit) {
    FrameHeader changed = header(1, 0);
    reinterpret_cast<unsigned char*>(&changed)[bit / 8] ^= 1 << bit % 8;
    digests.insert(digest({changed, header(2, 0)}));
  }
  EXPECT_EQ(digests.size(), 1 + 8 * sizeof(FrameHeader));
}

// Otherwise somebody could move what they take from one header to another one.
TEST(HeaderDigestTest, ChangesOfTwoHeadersDoNotMakeUpForEachOther) {
  EXPECT_NE(digest({header(5, 0), header(7, 0)}), digest({header(6, 0), header(6, 0)}));
}

TEST(HeaderDigestTest, BeginsAnewAfterItWasTaken) {
  HeaderDigest digest(Mac{9});
  digest.add(header(1, 0));
  const uint64_t first = digest.take();
  digest.add(header(1, 0));
  EXPECT_EQ(digest.take(), first);
  EXPECT_EQ(digest.take(), 0u);
}

}  // namespace
}  // namespace perseus
