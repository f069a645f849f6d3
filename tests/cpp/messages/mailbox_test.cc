// Mailbox: which message meets which receive.
#include "messages/mailbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace perseus {
namespace {

constexpr int32_t kAny = MessageEnds::kAny;

OperationPtr receive_of(const MessageKey& key) {
  auto receive = std::make_shared<Operation>();
  receive->process_set = key.process_set;
  receive->message = {key.source, key.tag};
  return receive;
}

KeptMessagePtr message_of(const MessageKey& key, uint64_t number = 0) {
  auto message = std::make_shared<KeptMessage>();
  message->envelope.process_set = key.process_set;
  message->envelope.tag = key.tag;
  message->envelope.number = number;
  message->source = key.source;
  return message;
}

TEST(Mailbox, GivesAMessageToTheFirstReceiveThatAsksForIt) {
  Mailbox mailbox;
  const auto any = receive_of({0, kAny, kAny}), exact = receive_of({0, 1, 7});
  mailbox.post({0, kAny, kAny}, any);
  mailbox.post({0, 1, 7}, exact);
  EXPECT_EQ(mailbox.take_receive({5, 1, 7}), nullptr) << "another process set";
  EXPECT_EQ(mailbox.take_receive({0, 1, 7}), any);
  EXPECT_EQ(mailbox.take_receive({0, 2, 7}), nullptr) << "another sender";
  EXPECT_EQ(mailbox.take_receive({0, 1, 8}), nullptr) << "another tag";
  EXPECT_EQ(mailbox.take_receive({0, 1, 7}), exact);
  EXPECT_EQ(mailbox.take_receive({0, 1, 7}), nullptr);
}

TEST(Mailbox, GivesAReceiveTheFirstMessageThatItAsksFor) {
  Mailbox mailbox;
  for (uint64_t number = 1; number <= 4; ++number) {
    mailbox.keep(message_of({0, static_cast<int>(number % 2), 7}, number));
  }
  EXPECT_EQ(mailbox.take_message({0, 1, 8}), nullptr);
  EXPECT_EQ(mailbox.take_message({0, 0, 7})->envelope.number, 2u);
  EXPECT_EQ(mailbox.take_message({0, kAny, 7})->envelope.number, 1u);
  EXPECT_EQ(mailbox.take_message({0, 1, kAny})->envelope.number, 3u);
  EXPECT_EQ(mailbox.take_message({0, kAny, kAny})->envelope.number, 4u);
  EXPECT_EQ(mailbox.take_message({0, kAny, kAny}), nullptr);
}

TEST(Mailbox, TakesOutWhatIsAskedFor) {
  Mailbox mailbox;
  std::vector<OperationPtr> posted;
  for (int i = 0; i < 6; ++i) {
    posted.push_back(receive_of({i % 2, i, 0}));
    mailbox.post({i % 2, i, 0}, posted.back());
  }
  const auto taken =
      mailbox.take_receives([](const Operation& receive) { return receive.process_set == 1; });
  EXPECT_EQ(taken, (std::vector<OperationPtr>{posted[1], posted[3], posted[5]}));
  EXPECT_EQ(mailbox.take_receive({1, 1, 0}), nullptr);
  EXPECT_EQ(mailbox.take_receive({0, 2, 0}), posted[2]);
  mailbox.keep(message_of({0, 1, 1}, 1));
  mailbox.keep(message_of({0, 1, 1}, 2));
  mailbox.drop_messages([](KeptMessage& message) { return message.envelope.number == 1; });
  EXPECT_EQ(mailbox.take_message({0, 1, 1})->envelope.number, 2u);
}

TEST(Mailbox, AnyTagIsOneOfTheProgramsOwn) {
  constexpr int32_t kFirst = MessageEnds::kFirstOfLibraries;
  Mailbox mailbox;
  const auto any = receive_of({0, 1, kAny}), exact = receive_of({0, kAny, kFirst});
  mailbox.post({0, 1, kAny}, any);
  EXPECT_EQ(mailbox.take_receive({0, 1, kFirst}), nullptr);
  mailbox.post({0, kAny, kFirst}, exact);
  EXPECT_EQ(mailbox.take_receive({0, 1, kFirst}), exact);
  EXPECT_EQ(mailbox.take_receive({0, 1, kFirst - 1}), any);
  mailbox.keep(message_of({0, 1, kFirst}, 1));
  mailbox.keep(message_of({0, 1, kFirst - 1}, 2));
  EXPECT_EQ(mailbox.take_message({0, kAny, kAny})->envelope.number, 2u);
  EXPECT_EQ(mailbox.take_message({0, kAny, kAny}), nullptr);
  EXPECT_EQ(mailbox.take_message({0, kAny, kFirst})->envelope.number, 1u);
}

// Beside lists that are searched from their beginning.
TEST(Mailbox, MatchesLikeTwoLists) {
  std::mt19937 random(1);
  const auto below = [&](int limit) {
    return std::uniform_int_distribution<int32_t>(0, limit - 1)(random);
  };
  Mailbox mailbox;
  std::vector<std::pair<MessageKey, OperationPtr>> receives;
  std::vector<std::pair<MessageKey, KeptMessagePtr>> messages;
  const auto asks_for = [](const MessageKey& asked, const MessageKey& message) {
    return asked.process_set == message.process_set &&
           (asked.source == kAny || asked.source == message.source) &&
           (asked.tag == kAny || asked.tag == message.tag);
  };
  for (int step = 0; step < 20'000; ++step) {
    MessageKey key{below(2), below(3), step % 2000 < 1000 ? below(4) : below(100)};
    if (below(2) == 0) {
      const auto expected = std::ranges::find_if(
          receives, [&](const auto& posted) { return asks_for(posted.first, key); });
      const OperationPtr found = mailbox.take_receive(key);
      ASSERT_EQ(found, expected == receives.end() ? nullptr : expected->second) << step;
      if (expected != receives.end()) {
        receives.erase(expected);
      } else {
        messages.emplace_back(key, message_of(key));
        mailbox.keep(messages.back().second);
      }
    } else {
      if (below(4) == 0) key.source = kAny;
      if (below(4) == 0) key.tag = kAny;
      const auto expected = std::ranges::find_if(
          messages, [&](const auto& kept) { return asks_for(key, kept.first); });
      const KeptMessagePtr found = mailbox.take_message(key);
      ASSERT_EQ(found, expected == messages.end() ? nullptr : expected->second) << step;
      if (expected != messages.end()) {
        messages.erase(expected);
      } else {
        receives.emplace_back(key, receive_of(key));
        mailbox.post(key, receives.back().second);
      }
    }
  }
}

}  // namespace
}  // namespace perseus
