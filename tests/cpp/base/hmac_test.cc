#include "base/hmac.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/sha256.h"

namespace perseus {
namespace {

std::string hex(const std::array<uint8_t, 32>& digest) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// FIPS 180-4's examples.
TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesWereCut) {
  const std::string text(300, 'x');
  for (size_t cut = 1; cut <= 130; ++cut) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += cut) hash.update(text.substr(at, cut));
    EXPECT_EQ(hex(hash.finish()), hex(sha256(text))) << "pieces of " << cut;
  }
}

// As both are checked against each other and one of them against the published vectors, both are
// right.
TEST(Sha256, IsTheSameWithAndWithoutTheProcessorsInstructions) {
  const Sha256Blocks by_instructions = sha256_blocks_by_instructions();
  if (by_instructions == nullptr) GTEST_SKIP() << "this processor has no instructions for SHA-256";
  std::vector<uint8_t> blocks(64 * 7);
  uint32_t random = 1;
  for (uint8_t& byte : blocks)
    byte = static_cast<uint8_t>((random = random * 1664525 + 1013904223) >> 24);
  for (size_t count = 0; count <= 7; ++count) {
    Sha256State one = {1, 2, 3, 4, 5, 6, 7, 0xffffffff};
    Sha256State other = one;
    sha256_blocks_portable(one, blocks.data(), count);
    by_instructions(other, blocks.data(), count);
    EXPECT_EQ(one, other) << count << " blocks";
  }
}

struct Vector {
  std::string key, message, mac;
};

// RFC 4231, test cases 1 to 4, 6 and 7.
TEST(HmacSha256, MatchesRfc4231) {
  std::string key25;
  for (char c = 1; c <= 25; ++c) key25 += c;
  const Vector vectors[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {key25, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Vector& v : vectors) EXPECT_EQ(hex(hmac_sha256(v.key, v.message)), v.mac);
}

TEST(HmacKey, IsUsedForManyMessagesInPieces) {
  const HmacKey key("Jefe");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(key.of("what do ya want ", {"for", std::string_view(), " nothing?"}),
              hmac_sha256("Jefe", "what do ya want for nothing?"));
  }
}

TEST(EqualInConstantTime, TellsEqualFromDifferent) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secret", "secreT"));
  EXPECT_FALSE(equal_in_constant_time("secret", "xecret"));
  EXPECT_FALSE(equal_in_constant_time("secret", "secre"));
}

}  // namespace
}  // namespace perseus
