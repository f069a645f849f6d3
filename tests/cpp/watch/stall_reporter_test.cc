#include "watch/stall_reporter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Waiting = StallReporter::Waiting;
using Report = StallReporter::Report;

const StallReporter::TimePoint kStart{};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Waiting> one_tensor() { return {{"'layer1.weight'", kStart, {1, 3}, {0, 2}}}; }

TEST(RankListTest, ShortensRuns) {
  EXPECT_EQ(rank_list(std::vector<int>{}), "");
  EXPECT_EQ(rank_list(std::vector<int>{4}), "4");
  EXPECT_EQ(rank_list(std::vector<int>{1, 2}), "1, 2");
  EXPECT_EQ(rank_list(std::vector<int>{0, 1, 2, 5, 7, 8, 9}), "0-2, 5, 7-9");
}

TEST(StallReporterTest, SaysNothingBeforeItsTime) {
  StallReporter reporter(seconds(30));
  Report report = reporter.check(kStart + milliseconds(29999), one_tensor());
  EXPECT_EQ(report.warning, "");
  EXPECT_EQ(report.tensors, 0u);
  EXPECT_EQ(report.cleared, "");
}

TEST(StallReporterTest, NamesTensorTimeAndRanks) {
  StallReporter reporter(seconds(30));
  Report report = reporter.check(kStart + seconds(34), one_tensor());
  EXPECT_EQ(report.tensors, 1u);
  EXPECT_TRUE(
      contains(report.warning, "1 tensor waits for ranks that have not submitted it, for 34 s"))
      << report.warning;
  EXPECT_TRUE(contains(report.warning,
                       "'layer1.weight' (34 s): missing on ranks 1, 3; ready on ranks 0, 2"))
      << report.warning;
}

TEST(StallReporterTest, RepeatsAfterEachInterval) {
  StallReporter reporter(seconds(30));
  EXPECT_NE(reporter.check(kStart + seconds(30), one_tensor()).warning, "");
  EXPECT_EQ(reporter.check(kStart + seconds(31), one_tensor()).warning, "");
  EXPECT_EQ(reporter.check(kStart + seconds(59), one_tensor()).warning, "");
  EXPECT_NE(reporter.check(kStart + seconds(60), one_tensor()).warning, "");
}

TEST(StallReporterTest, TensorsOfOneStepShareOneReport) {
  StallReporter reporter(seconds(30));
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back("'layer" + std::to_string(i) + "'");
  std::vector<Waiting> waiting;
  for (int i = 0; i < 12; ++i)
    waiting.push_back({names[i], kStart + milliseconds(3 * i), {1}, {0}});
  Report report = reporter.check(kStart + seconds(30), waiting);
  EXPECT_EQ(report.tensors, 12u);
  EXPECT_TRUE(contains(report.warning, "'layer0' (30 s)")) << report.warning;
  EXPECT_TRUE(contains(report.warning, "and 2 more")) << report.warning;
  EXPECT_FALSE(contains(report.warning, "layer11")) << report.warning;
  EXPECT_EQ(reporter.check(kStart + milliseconds(30040), waiting).warning, "");
  EXPECT_EQ(reporter.check(kStart + milliseconds(59'999), waiting).warning, "");
  EXPECT_NE(reporter.check(kStart + seconds(60), waiting).warning, "");
}

TEST(StallReporterTest, TellsWhenAReportedTensorWaitsNoMore) {
  StallReporter reporter(seconds(30));
  reporter.check(kStart + seconds(30), one_tensor());
  Report report = reporter.check(kStart + seconds(74), {});
  EXPECT_EQ(report.cleared, "no longer stalled: 'layer1.weight' (after 74 s)");
  EXPECT_EQ(reporter.check(kStart + seconds(75), {}).cleared, "");
}

TEST(StallReporterTest, ATensorNeverReportedIsNotCleared) {
  StallReporter reporter(seconds(30));
  reporter.check(kStart + seconds(10), one_tensor());
  EXPECT_EQ(reporter.check(kStart + seconds(20), {}).cleared, "");
}

TEST(StallReporterTest, ANewWaitUnderAnOldNameStartsAfresh) {
  StallReporter reporter(seconds(30));
  reporter.check(kStart + seconds(30), one_tensor());
  std::vector<Waiting> next_step = {{"'layer1.weight'", kStart + seconds(40), {1}, {0}}};
  Report report = reporter.check(kStart + seconds(65), next_step);
  EXPECT_EQ(report.warning, "");
  EXPECT_TRUE(contains(report.cleared, "'layer1.weight'"));
  EXPECT_NE(reporter.check(kStart + seconds(70), next_step).warning, "");
}

}  // namespace
}  // namespace perseus
