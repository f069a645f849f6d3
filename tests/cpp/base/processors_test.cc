#include "base/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/start_thread.h"

namespace perseus {
namespace {

Processors listed(const char* list) { return Processors::parse(list).value(); }

TEST(Processors, AreListedAsLinuxDoes) {
  EXPECT_TRUE(listed("").is_empty());
  EXPECT_EQ(listed("0-2,65").words(), (std::vector<uint64_t>{7, 2}));
  EXPECT_EQ(listed("0-2,65").count(), 4);
  EXPECT_EQ(listed("65,66").lowest(), 65);
  EXPECT_EQ(Processors().lowest(), -1);
  for (const char* list : {"a", "1-", "-1", "1,,2", "1-b", "0-99999", "1 2"}) {
    EXPECT_FALSE(Processors::parse(list).has_value()) << list;
  }
}

TEST(Processors, HaveSomeInCommon) {
  EXPECT_EQ(listed("0-7,70").common_with(listed("6-9")), listed("6,7"));
  EXPECT_TRUE(listed("0-7,70").contains_all(listed("3,70")));
  EXPECT_FALSE(listed("0-7").contains_all(listed("3,70")));
  EXPECT_FALSE(listed("0-7").contains(70));
}

Processors of_this_thread() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  Processors found;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) found.add(processor);
  }
  return found;
}

TEST(Processors, OfThisProcessAreThoseThatItMayRunOn) {
  EXPECT_EQ(Processors::of_this_process(), of_this_thread());
}

TEST(Processors, AThreadIsBoundToThemAndThoseThatItStartsAreNot) {
  const Processors all = of_this_thread();
  Processors one;
  one.add(all.lowest());
  std::thread([&] {
    EXPECT_TRUE(bind_thread_to(one));
    EXPECT_EQ(of_this_thread(), one);
    EXPECT_EQ(Processors::of_this_process(), all);
    std::thread other;
    ASSERT_TRUE(start_thread(other, "a test", [&] { EXPECT_EQ(of_this_thread(), all); }).is_ok());
    other.join();
    EXPECT_FALSE(bind_thread_to(listed("8191")));
    EXPECT_FALSE(bind_thread_to(Processors()));
  }).join();
}

// A folder as /sys/devices/system/cpu.
class LastLevelCaches : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "cachesXXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void add_cache(int processor, int index, const char* level, const char* shared) {
    const auto cache =
        folder_ / ("cpu" + std::to_string(processor)) / "cache" / ("index" + std::to_string(index));
    std::filesystem::create_directories(cache);
    std::ofstream(cache / "level") << level << "\n";
    std::ofstream(cache / "shared_cpu_list") << shared << "\n";
  }
  // The usual four: data, instructions, a second level of its own, and a third.
  void add_processor(int processor, const char* shared) {
    const std::string own = std::to_string(processor);
    for (int index = 0; index < 2; ++index) add_cache(processor, index, "1", own.c_str());
    add_cache(processor, 2, "2", own.c_str());
    add_cache(processor, 3, "3", shared);
  }
  std::vector<Processors> caches(const char* wanted) {
    return last_level_caches(listed(wanted), folder_);
  }

  std::filesystem::path folder_;
};

TEST_F(LastLevelCaches, AreThoseOfTheHighestLevel) {
  for (int processor : {0, 1, 4, 5}) add_processor(processor, "0-1,4-5");
  for (int processor : {2, 3, 6, 7}) add_processor(processor, "2-3,6-7");
  EXPECT_EQ(caches("0-7"), (std::vector<Processors>{listed("0-1,4-5"), listed("2-3,6-7")}));
}

TEST_F(LastLevelCaches, AreWholeWherePartOfThemIsWanted) {
  for (int processor : {0, 1}) add_processor(processor, "0-1");
  for (int processor : {2, 3}) add_processor(processor, "2-3");
  EXPECT_EQ(caches("3"), std::vector<Processors>{listed("2-3")});
  EXPECT_EQ(caches("1,2"), (std::vector<Processors>{listed("0-1"), listed("2-3")}));
  EXPECT_TRUE(caches("").empty());
}

TEST_F(LastLevelCaches, AreNoneIfOneIsNotToBeFound) {
  add_processor(0, "0");
  EXPECT_TRUE(caches("0-1").empty());  // nothing about processor 1
  add_processor(1, "many");
  EXPECT_TRUE(caches("0-1").empty());
  add_processor(1, "0");  // a list without it
  EXPECT_TRUE(caches("0-1").empty());
  add_processor(1, "1");
  EXPECT_EQ(caches("0-1").size(), 2u);
}

}  // namespace
}  // namespace perseus
