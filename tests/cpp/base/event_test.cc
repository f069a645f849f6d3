#include "base/event.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

namespace perseus {
namespace {

using namespace std::chrono_literals;

std::chrono::microseconds processor_time() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(EventTest, WakesAllThatWaitWhetherTheyYieldOrSleep) {
  for (const auto spin : {0ms, 1ms, 10'000ms}) {
    Event event;
    std::thread first([&] { EXPECT_TRUE(event.wait({}, spin)); });
    std::thread second([&] { EXPECT_TRUE(event.wait(60s, spin)); });
    std::this_thread::sleep_for(5ms);  // so that the waiting threads sleep
    event.set();
    first.join();
    second.join();
  }
}

TEST(EventTest, ATimeOutEndsAWaitThatYields) {
  Event event;
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(event.wait(2ms, 10s));
  EXPECT_GE(std::chrono::steady_clock::now() - began, 2ms);
  EXPECT_FALSE(event.wait(0ms, 10s));
  event.set();
  EXPECT_TRUE(event.wait(0ms));
}

TEST(EventTest, SleepsOnceItHasYieldedForItsTime) {
  Event event;
  const auto before = processor_time();
  EXPECT_FALSE(event.wait(300ms, 1ms));
  EXPECT_LT(processor_time() - before, 100ms);
}

TEST(EventTest, CanBeUsedAgain) {
  Event event;
  event.set();
  event.clear();
  EXPECT_FALSE(event.wait(0ms));
  std::thread setter([&] { event.set(); });
  EXPECT_TRUE(event.wait());
  setter.join();
}

}  // namespace
}  // namespace perseus
