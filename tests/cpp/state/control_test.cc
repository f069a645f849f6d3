#include "state/control.h"

#include <gtest/gtest.h>

#include <vector>

namespace perseus {
namespace {

// The rest of a message after its kind, which must be `kind`.
ByteReader body(const std::vector<std::byte>& message, ControlKind kind) {
  ByteReader reader(message);
  EXPECT_EQ(reader.get<ControlKind>(), kind);
  return reader;
}

TEST(Control, LeavingArrivesAsItWasSent) {
  Leaving sent;
  sent.rank = 3;
  sent.why = "out of memory";
  sent.rounds = {{0, 17}, {1 << 20, 2}};
  const auto message = sent.write();
  const auto read = Leaving::read(body(message, ControlKind::kLeaving));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->why, "out of memory");
  EXPECT_EQ(read->rounds, sent.rounds);
  EXPECT_EQ(read->last_round(0), 17u);
  EXPECT_EQ(read->last_round(5), 0u) << "a set that the rank does not know";
}

TEST(Control, RoundDemandAndClosedArriveAsTheyWereSent) {
  const auto demand = RoundDemand{7, 1ull << 40}.write();
  const auto demanded = RoundDemand::read(body(demand, ControlKind::kRoundDemand));
  ASSERT_TRUE(demanded);
  EXPECT_EQ(demanded->process_set, 7);
  EXPECT_EQ(demanded->round, 1ull << 40);

  const auto closed = Closed{1 << 20, 2, 9}.write();
  const auto read = Closed::read(body(closed, ControlKind::kClosed));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->process_set, 1 << 20);
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->last_round, 9u);
}

TEST(Control, BrokenArrivesAsItWasSent) {
  const auto message = Broken{1, "lost rank 1", true, {3, 4}}.write();
  const auto read = Broken::read(body(message, ControlKind::kBroken));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rank, 1);
  EXPECT_EQ(read->why, "lost rank 1");
  EXPECT_TRUE(read->has_left);
  EXPECT_EQ(read->others_lost, (std::vector<int32_t>{3, 4}));
}

TEST(Control, StallMessagesArriveAsTheyWereSent) {
  StallQuery query;
  query.process_set = 4;
  query.rounds = 12;
  query.late = {{"allreduce.a", 7}, {"broadcast.b", 5}};
  const auto asked = query.write();
  const auto read = StallQuery::read(body(asked, ControlKind::kStallQuery));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->process_set, 4);
  EXPECT_EQ(read->rounds, 12u);
  ASSERT_EQ(read->late.size(), 2u);
  EXPECT_EQ(read->late[0].key, "allreduce.a");
  EXPECT_EQ(read->late[0].waited_seconds, 7u);
  EXPECT_EQ(read->late[1].key, "broadcast.b");

  StallAnswer answer;
  answer.process_set = 4;
  answer.missing = {"allreduce.a"};
  answer.last_submitted = "'broadcast.c'";
  const auto answered = answer.write();
  const auto heard = StallAnswer::read(body(answered, ControlKind::kStallAnswer));
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->missing, answer.missing);
  EXPECT_EQ(heard->last_submitted, answer.last_submitted);
}

WaitAnswer wait_answer() {
  WaitAnswer answer;
  answer.number = 3;
  answer.has_it = true;
  answer.has_joined = true;
  answer.waits_for_data_only = true;
  answer.waited_ms = 1ull << 40;
  answer.waits_for = "'allreduce.a'";
  answer.ranks = {0, 2};
  answer.last_submitted = "'allreduce.b'";
  answer.idle_ms = 5;
  return answer;
}

TEST(Control, QuestionsAboutWaitingAndTheirAnswersArriveAsTheyWereSent) {
  const auto asked = WaitQuery{3, 600'000, 4, 12, "allreduce.a"}.write();
  const auto query = WaitQuery::read(body(asked, ControlKind::kWaitQuery));
  ASSERT_TRUE(query);
  EXPECT_EQ(query->number, 3u);
  EXPECT_EQ(query->limit_ms, 600'000u);
  EXPECT_EQ(query->process_set, 4);
  EXPECT_EQ(query->rounds, 12u);
  EXPECT_EQ(query->key, "allreduce.a");

  const WaitAnswer sent = wait_answer();
  const auto answered = sent.write();
  const auto heard = WaitAnswer::read(body(answered, ControlKind::kWaitAnswer));
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->number, 3u);
  EXPECT_TRUE(heard->has_it);
  EXPECT_TRUE(heard->has_joined);
  EXPECT_TRUE(heard->waits_for_data_only);
  EXPECT_EQ(heard->waited_ms, 1ull << 40);
  EXPECT_EQ(heard->waits_for, sent.waits_for);
  EXPECT_EQ(heard->ranks, sent.ranks);
  EXPECT_EQ(heard->last_submitted, sent.last_submitted);
  EXPECT_EQ(heard->idle_ms, 5u);
}

// Every message that ends too soon is refused, wherever it ends.
template <typename Message>
void expect_refused_when_cut(const Message& message) {
  const std::vector<std::byte> whole = message.write();
  for (size_t size = 1; size < whole.size(); ++size) {
    ByteReader reader(std::span<const std::byte>(whole).first(size));
    reader.get<ControlKind>();
    EXPECT_FALSE(Message::read(reader)) << size << " of " << whole.size() << " bytes";
  }
}

TEST(Control, WhatIsCutOffIsRefused) {
  Leaving leaving;
  leaving.why = "x";
  leaving.rounds = {{0, 1}};
  expect_refused_when_cut(leaving);
  expect_refused_when_cut(Broken{1, "lost", false, {2}});
  expect_refused_when_cut(WaitQuery{1, 2, 3, 4, "a"});
  expect_refused_when_cut(wait_answer());
  expect_refused_when_cut(RoundDemand{1, 2});
  expect_refused_when_cut(Closed{1, 2, 3});
  StallQuery query;
  query.late = {{"a", 1}};
  expect_refused_when_cut(query);
  StallAnswer answer;
  answer.missing = {"a"};
  expect_refused_when_cut(answer);
}

}  // namespace
}  // namespace perseus
