#include "schedule/admission.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

Ticket ticket(int32_t priority, uint64_t bytes = 1, int32_t set = 0) {
  Ticket made;
  made.priority = priority;
  made.bytes = bytes;
  made.process_set = set;
  return made;
}

TEST(Admission, StartsAtMostAsManyAsThereAreStreams) {
  Admission admission(2, 100);
  Ticket tickets[3] = {ticket(0), ticket(0), ticket(0)};
  for (Ticket& t : tickets) admission.add(&t);
  EXPECT_EQ(admission.start_next(), &tickets[0]);
  EXPECT_EQ(admission.start_next(), &tickets[1]);
  EXPECT_EQ(admission.start_next(), nullptr);
  admission.finish(&tickets[0]);
  EXPECT_EQ(admission.start_next(), &tickets[2]);
  EXPECT_EQ(tickets[2].timeline_row, 0);
}

TEST(Admission, HoldsBackWhatExceedsTheCredit) {
  Admission admission(4, 10);
  Ticket tickets[2] = {ticket(0, 8), ticket(0, 8)};
  for (Ticket& t : tickets) admission.add(&t);
  EXPECT_EQ(admission.start_next(), &tickets[0]);
  EXPECT_EQ(admission.start_next(), nullptr);
}

TEST(Admission, TheUrgentOvertakesWhatWaitsAndHasALaneInReserve) {
  Admission admission(1, 10);
  Ticket bulk[2] = {ticket(0, 8), ticket(0, 8)};
  for (Ticket& t : bulk) admission.add(&t);
  EXPECT_EQ(admission.start_next(), &bulk[0]);
  Ticket urgent = ticket(5, 8);
  admission.add(&urgent);
  EXPECT_EQ(admission.start_next(), &urgent);
  EXPECT_EQ(admission.start_next(), nullptr);
}

TEST(Admission, WithoutABoundOnTheirNumberTheEverMoreUrgentAllStart) {
  Admission admission(Admission::kAnyNumber, 10);
  Ticket rising[5] = {ticket(1, 8), ticket(2, 8), ticket(3, 8), ticket(4, 8), ticket(5, 8)};
  for (Ticket& t : rising) {
    admission.add(&t);
    EXPECT_EQ(admission.start_next(), &t);
  }
  Ticket less = ticket(0, 1);
  admission.add(&less);
  EXPECT_EQ(admission.start_next(), nullptr) << "beyond the credit";
}

TEST(Admission, WhatIsLessUrgentTakesNoCreditFromTheUrgent) {
  Admission admission(Admission::kAnyNumber, 10);
  Ticket bulk[2] = {ticket(0, 8), ticket(0, 8)};
  Ticket urgent[3] = {ticket(1, 5), ticket(1, 5), ticket(1, 5)};
  for (Ticket& t : bulk) admission.add(&t);
  EXPECT_EQ(admission.start_next(), &bulk[0]);
  EXPECT_EQ(admission.start_next(), nullptr);
  for (Ticket& t : urgent) admission.add(&t);
  EXPECT_EQ(admission.start_next(), &urgent[0]);
  EXPECT_EQ(admission.start_next(), &urgent[1]);
  EXPECT_EQ(admission.start_next(), nullptr);
  admission.finish(&urgent[0]);
  EXPECT_EQ(admission.start_next(), &urgent[2]);
}

TEST(Admission, TheOldestOfEachProcessSetMayAlwaysStart) {
  Admission admission(1, 10);
  Ticket first = ticket(9, 10, 0), second = ticket(0, 100, 1), third = ticket(0, 1, 1);
  for (Ticket* t : {&first, &second, &third}) admission.add(t);
  // The order does not matter: the oldest of both sets run, and the third waits.
  EXPECT_NE(admission.start_next(), nullptr);
  EXPECT_NE(admission.start_next(), nullptr);
  EXPECT_EQ(admission.start_next(), nullptr);
  EXPECT_EQ(third.state, Ticket::State::kWaiting);
}

TEST(Admission, GivesTicketsBackOnceNothingOlderIsUnfinished) {
  Admission admission(2, 100);
  Ticket tickets[2] = {ticket(0), ticket(0)};
  for (Ticket& t : tickets) admission.add(&t);
  admission.start_next();
  admission.start_next();
  admission.finish(&tickets[1]);
  EXPECT_TRUE(admission.collect().empty());
  admission.finish(&tickets[0]);
  EXPECT_EQ(admission.collect().size(), 2u);
}

TEST(Admission, GivesATicketBackOnceAndTakesItAgain) {
  Admission admission(2, 100);
  Ticket first = ticket(0), second = ticket(0);
  for (int round = 0; round < 3; ++round) {
    admission.add(&first);
    admission.add(&second);
    EXPECT_EQ(admission.start_next(), &first);
    EXPECT_EQ(admission.start_next(), &second);
    admission.finish(&first);
    ASSERT_EQ(admission.collect().size(), 1u);
    EXPECT_TRUE(admission.collect().empty());
    admission.finish(&second);
    ASSERT_EQ(admission.collect().size(), 1u);
    EXPECT_EQ(admission.start_next(), nullptr);
  }
}

TEST(Admission, WhatRunsIsCollectedAfterTheRestWasCancelled) {
  Admission admission(2, 100);
  Ticket tickets[4] = {ticket(0), ticket(0), ticket(0), ticket(0)};
  for (Ticket& t : tickets) admission.add(&t);
  admission.start_next();
  admission.start_next();
  admission.finish(&tickets[1]);
  EXPECT_EQ(admission.cancel_waiting().size(), 2u);
  EXPECT_TRUE(admission.collect().empty());
  admission.finish(&tickets[0]);
  EXPECT_EQ(admission.collect().size(), 2u);
  Ticket later = ticket(0);
  admission.add(&later);
  EXPECT_EQ(admission.start_next(), &later);
}

TEST(Admission, CancelEndsWhatHasNotStarted) {
  Admission admission(1, 100);
  Ticket tickets[3] = {ticket(0), ticket(0), ticket(0)};
  for (Ticket& t : tickets) admission.add(&t);
  admission.start_next();
  EXPECT_EQ(admission.cancel_waiting().size(), 2u);
  EXPECT_EQ(admission.start_next(), nullptr);
  admission.finish(&tickets[0]);
  EXPECT_TRUE(admission.is_idle());
}

}  // namespace
}  // namespace perseus
