#include "base/sealed_sequence.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace perseus {
namespace {

const OpenSsl& openssl() {
  Result<const OpenSsl*> found = load_openssl("");
  if (!found.is_ok()) throw std::runtime_error(found.status().message());
  return *found.value();
}

Mac repeated(char letter) {
  Mac key;
  key.fill(static_cast<uint8_t>(letter));
  return key;
}

std::byte* bytes(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

struct Sealed {
  std::string header, body;
  MessageTag tag;
};

Sealed encrypt(SealedSequence& sequence, const std::string& header, std::string body) {
  Sealed sealed{header, std::string(body.size(), '\0'), {}};
  EXPECT_TRUE(sequence.encrypt(header, bytes(body), body.size(), bytes(sealed.body), sealed.tag));
  return sealed;
}

Sealed authenticate(SealedSequence& sequence, const std::string& header, std::string body) {
  Sealed sealed{header, body, {}};
  EXPECT_TRUE(sequence.authenticate(header, bytes(body), body.size(), sealed.tag));
  return sealed;
}

// Returns the body, or "refused".
std::string decrypt(SealedSequence& sequence, Sealed message) {
  return sequence.decrypt(message.header, bytes(message.body), message.body.size(),
                          view(message.tag))
             ? message.body
             : "refused";
}

bool verify(SealedSequence& sequence, Sealed message) {
  return sequence.verify(message.header, bytes(message.body), message.body.size(),
                         view(message.tag));
}

struct SealedEnds {
  explicit SealedEnds(uint64_t bytes_per_key = SealedSequence::kBytesPerKey)
      : sender(openssl(), repeated('k'), bytes_per_key),
        receiver(openssl(), repeated('k'), bytes_per_key) {}
  SealedSequence sender, receiver;
};

TEST(SealedSequenceTest, TheOtherEndReadsWhatNobodyElseCan) {
  SealedEnds ends;
  for (const std::string body : {std::string("secret gradients"), std::string(), std::string("x"),
                                 std::string(300000, 'g')}) {
    const Sealed sealed = encrypt(ends.sender, "header", body);
    if (body.size() > 1) {
      EXPECT_NE(sealed.body, body);
    }
    EXPECT_EQ(decrypt(ends.receiver, sealed), body);
  }
}

TEST(SealedSequenceTest, EncryptsInPlace) {
  SealedEnds ends;
  std::string body = "gradients";
  MessageTag tag;
  ASSERT_TRUE(ends.sender.encrypt("", bytes(body), body.size(), bytes(body), tag));
  EXPECT_EQ(decrypt(ends.receiver, {"", body, tag}), "gradients");
}

TEST(SealedSequenceTest, EqualMessagesLookDifferent) {
  SealedEnds ends;
  const Sealed one = encrypt(ends.sender, "", std::string(64, '0'));
  EXPECT_NE(one.body, encrypt(ends.sender, "", std::string(64, '0')).body);
}

TEST(SealedSequenceTest, AnyChangeIsRefused) {
  const auto expect_refused = [](auto change) {
    SealedEnds encrypted, authenticated;
    Sealed one = encrypt(encrypted.sender, "header", "body");
    change(one);
    EXPECT_EQ(decrypt(encrypted.receiver, one), "refused");
    Sealed other = authenticate(authenticated.sender, "header", "body");
    change(other);
    EXPECT_FALSE(verify(authenticated.receiver, other));
  };
  expect_refused([](Sealed& sealed) { sealed.header[0] ^= 1; });
  expect_refused([](Sealed& sealed) { sealed.body[3] ^= 0x80; });
  expect_refused([](Sealed& sealed) { sealed.body.pop_back(); });
  expect_refused([](Sealed& sealed) { sealed.tag[15] ^= 1; });
}

TEST(SealedSequenceTest, ARepeatedOrMissingMessageIsRefused) {
  SealedEnds repeated;
  const Sealed sealed = encrypt(repeated.sender, "", "again");
  EXPECT_EQ(decrypt(repeated.receiver, sealed), "again");
  EXPECT_EQ(decrypt(repeated.receiver, sealed), "refused");
  SealedEnds missing;
  authenticate(missing.sender, "", "left out");
  EXPECT_FALSE(verify(missing.receiver, authenticate(missing.sender, "", "second")));
}

TEST(SealedSequenceTest, AnotherKeyIsRefused) {
  SealedSequence sender(openssl(), repeated('k')), receiver(openssl(), repeated('j'));
  EXPECT_EQ(decrypt(receiver, encrypt(sender, "", "body")), "refused");
}

// Each message is larger than what a key seals, so that every one has a key of its own.
TEST(SealedSequenceTest, BothEndsGoOnToTheNextKeyTogether) {
  SealedEnds ends(/*bytes_per_key=*/100);
  for (int i = 0; i < 20; ++i) {
    const std::string body(17 * i, 'a');
    EXPECT_EQ(decrypt(ends.receiver, encrypt(ends.sender, "", body)), body) << i;
  }
  SealedEnds other(/*bytes_per_key=*/100);
  SealedSequence one_key(openssl(), repeated('k'));
  encrypt(other.sender, "", std::string(100, 'a'));
  encrypt(one_key, "", std::string(100, 'a'));
  EXPECT_NE(encrypt(other.sender, "", std::string(100, 'a')).body,
            encrypt(one_key, "", std::string(100, 'a')).body);
}

}  // namespace
}  // namespace perseus
