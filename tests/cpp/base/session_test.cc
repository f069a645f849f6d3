#include "base/session.h"

#include <gtest/gtest.h>

#include <string>

namespace perseus {
namespace {

struct Ends {
  Session initiator{"secret", "nonces", Role::kInitiator};
  Session acceptor{"secret", "nonces", Role::kAcceptor};
};

TEST(SessionTest, EachEndAcceptsWhatTheOtherSays) {
  Ends ends;
  for (const std::string text : {"first", "", "third"}) {
    const MessageTag tag = ends.initiator.outgoing.next({"head", text});
    EXPECT_TRUE(ends.acceptor.incoming.is_next(view(tag), {"head", text}));
    const MessageTag back = ends.acceptor.outgoing.next({text});
    EXPECT_TRUE(ends.initiator.incoming.is_next(view(back), {text}));
  }
}

TEST(SessionTest, APieceMayBeCutElsewhere) {
  Ends ends;
  const MessageTag tag = ends.initiator.outgoing.next({"one message"});
  EXPECT_TRUE(ends.acceptor.incoming.is_next(view(tag), {"one ", "message"}));
}

TEST(SessionTest, AChangedMessageIsRefused) {
  Ends ends;
  const MessageTag tag = ends.initiator.outgoing.next({"pay 1"});
  EXPECT_FALSE(ends.acceptor.incoming.is_next(view(tag), {"pay 9"}));
}

TEST(SessionTest, AChangedOrShortTagIsRefused) {
  Ends ends;
  MessageTag tag = ends.initiator.outgoing.next({"text"});
  tag[15] ^= 1;
  EXPECT_FALSE(ends.acceptor.incoming.is_next(view(tag), {"text"}));
  EXPECT_FALSE(ends.acceptor.incoming.is_next("", {"text"}));
}

TEST(SessionTest, ARepeatedMessageIsRefused) {
  Ends ends;
  const MessageTag tag = ends.initiator.outgoing.next({"again"});
  EXPECT_TRUE(ends.acceptor.incoming.is_next(view(tag), {"again"}));
  EXPECT_FALSE(ends.acceptor.incoming.is_next(view(tag), {"again"}));
}

TEST(SessionTest, AMessageThatOvertakesAnotherIsRefused) {
  Ends ends;
  ends.initiator.outgoing.next({"left out"});
  const MessageTag tag = ends.initiator.outgoing.next({"second"});
  EXPECT_FALSE(ends.acceptor.incoming.is_next(view(tag), {"second"}));
}

TEST(SessionTest, AMessageThatIsSentBackIsRefused) {
  Ends ends;
  const MessageTag tag = ends.initiator.outgoing.next({"hello"});
  EXPECT_FALSE(ends.initiator.incoming.is_next(view(tag), {"hello"}));
}

TEST(SessionTest, AnotherSecretOrTranscriptGivesOtherTags) {
  Session one("secret", "nonces", Role::kInitiator);
  const MessageTag tag = one.outgoing.next({"hello"});
  Session guessed("guess", "nonces", Role::kAcceptor);
  EXPECT_FALSE(guessed.incoming.is_next(view(tag), {"hello"}));
  Session relayed("secret", "other nonces", Role::kAcceptor);
  EXPECT_FALSE(relayed.incoming.is_next(view(tag), {"hello"}));
}

// Computed by Python's hmac: the keys are part of the protocol, which the launcher speaks, too.
TEST(SessionTest, TheTagsAreThoseOfTheProtocol) {
  Session one("secret", "nonces", Role::kInitiator);
  one.outgoing.next({"zero"});
  const MessageTag tag = one.outgoing.next({"one"});
  std::string hex;
  for (const char c : tag) {
    hex += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    hex += "0123456789abcdef"[c & 15];
  }
  EXPECT_EQ(hex, "caf6ecc943c229f96ead75f80cbf3f45");
}

}  // namespace
}  // namespace perseus
