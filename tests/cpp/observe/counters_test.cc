#include "observe/counters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

namespace perseus {
namespace {

std::map<std::string, uint64_t> values(const Counters& counters) {
  std::map<std::string, uint64_t> found;
  visit_counters(counters, [&](const char* name, uint64_t value) {
    EXPECT_TRUE(found.emplace(name, value).second) << name << " is visited twice";
  });
  return found;
}

TEST(CountersTest, StartAtZero) {
  Counters counters;
  std::map<std::string, uint64_t> found = values(counters);
  EXPECT_EQ(found.count("agreement_messages_sent"), 1u);
  for (const auto& [name, value] : found) EXPECT_EQ(value, 0u) << name;
}

TEST(CountersTest, AreVisitedByNameWithTheirValue) {
  Counters counters;
  counters.agreements.add();
  counters.bytes_reduced.add(uint64_t{1} << 40);
  std::map<std::string, uint64_t> found = values(counters);
  EXPECT_EQ(found["agreements"], 1u);
  EXPECT_EQ(found["bytes_reduced"], uint64_t{1} << 40);
  EXPECT_EQ(found["shards"], 0u);
}

TEST(CountersTest, LoseNothingWhenThreadsCountTogether) {
  Counters counters;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) counters.operations_submitted.add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters.operations_submitted.value(), 40000u);
}

}  // namespace
}  // namespace perseus
