#include "observe/timeline.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "observe/json_reader.h"
#include "sanitizers.h"

namespace perseus {
namespace {

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    std::string pattern = testing::TempDir() + "timeline_test_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "timeline.json") const { return folder_ + "/" + name; }
  std::string text(const std::string& name = "timeline.json") const {
    std::ifstream file(path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Returns the file's records; fails the test if it is not JSON.
  std::vector<Json> records(const std::string& name = "timeline.json") const {
    std::optional<Json> json = JsonReader::read(text(name));
    EXPECT_TRUE(json.has_value()) << text(name);
    return json ? json->array : std::vector<Json>();
  }
  static std::vector<Json> with_phase(const std::vector<Json>& records, const std::string& phase) {
    std::vector<Json> found;
    for (const Json& record : records) {
      if (record["ph"].string == phase) found.push_back(record);
    }
    return found;
  }
  // Tensor names by pid.
  static std::map<int, std::string> tensors(const std::vector<Json>& records) {
    std::map<int, std::string> names;
    for (const Json& record : with_phase(records, "M")) {
      if (record["name"].string != "process_name") continue;
      const bool is_new = names.emplace(record["pid"].number, record["args"]["name"].string).second;
      EXPECT_TRUE(is_new) << "a row is named twice";
    }
    return names;
  }

  std::string folder_;
};

TEST_F(TimelineTest, IsOffUntilStarted) {
  Timeline timeline;
  EXPECT_FALSE(timeline.enabled());
  timeline.begin("a", "ALLREDUCE");
  timeline.end("a");
  timeline.stop();
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  EXPECT_TRUE(timeline.enabled());
  timeline.stop();
  EXPECT_FALSE(timeline.enabled());
  EXPECT_EQ(with_phase(records(), "B").size(), 0u);
}

TEST_F(TimelineTest, EachTensorIsARowAndEachStreamALaneOfIt) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timeline.begin("w", "NEGOTIATE_ALLREDUCE");
  timeline.end("w");
  timeline.begin("w", "ALLREDUCE", -1, R"({"dtype": "float32", "shape": "[3, 4]"})");
  timeline.begin("w", "SHARD", 2);
  timeline.begin("b", "ALLREDUCE");
  timeline.end("w", 2);
  timeline.end("b");
  timeline.end("w");
  timeline.stop();

  const std::vector<Json> all = records();
  EXPECT_EQ(tensors(all), (std::map<int, std::string>{{0, "perseus"}, {1, "w"}, {2, "b"}}));
  const std::vector<Json> begins = with_phase(all, "B");
  ASSERT_EQ(begins.size(), 4u);
  EXPECT_EQ(begins[0]["name"].string, "NEGOTIATE_ALLREDUCE");
  EXPECT_EQ(begins[1]["args"]["shape"].string, "[3, 4]");
  EXPECT_EQ(begins[1]["tid"].number, 0);
  EXPECT_EQ(begins[2]["pid"].number, 1);
  EXPECT_EQ(begins[2]["tid"].number, 3);
  EXPECT_EQ(begins[3]["pid"].number, 2);
  EXPECT_EQ(with_phase(all, "E").size(), 4u);
  bool lane_is_named = false;
  for (const Json& record : with_phase(all, "M")) {
    if (record["name"].string != "thread_name") continue;
    lane_is_named = record["pid"].number == 1 && record["tid"].number == 3 &&
                    record["args"]["name"].string == "stream 2";
  }
  EXPECT_TRUE(lane_is_named);
}

TEST_F(TimelineTest, TimesNeverGoBack) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  constexpr int kThreads = 4;
  constexpr size_t kTimes = test::kIsSanitized ? 400 : 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&timeline, t] {
      const std::string tensor = "tensor" + std::to_string(t);
      for (size_t i = 0; i < kTimes; ++i) {
        timeline.begin(tensor, "ALLREDUCE");
        timeline.begin(tensor, "SHARD", t);
        timeline.end(tensor, t);
        timeline.end(tensor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  timeline.stop();

  const std::vector<Json> all = records();
  EXPECT_EQ(with_phase(all, "B").size(), kThreads * kTimes * 2);
  EXPECT_EQ(with_phase(all, "E").size(), kThreads * kTimes * 2);
  double last = 0;
  for (const Json& record : all) {
    if (!record.has("ts")) continue;
    ASSERT_GE(record["ts"].number, last);
    last = record["ts"].number;
  }
}

TEST_F(TimelineTest, NamesOfAnyBytesGiveValidJson) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timeline.begin("we\"ird\\\n\xFF", "PA\tCK");
  timeline.stop();
  const std::vector<Json> all = records();
  EXPECT_EQ(tensors(all)[1], "we\"ird\\\\u000a\\ufffd");
  EXPECT_EQ(with_phase(all, "B")[0]["name"].string, "PA\\u0009CK");
}

TEST_F(TimelineTest, MomentsOfNobodyGoToTheRowOfAll) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), true).is_ok());
  EXPECT_TRUE(timeline.marks_cycles());
  timeline.instant("", "CYCLE_START");
  timeline.instant("w", "READY");
  timeline.stop();
  EXPECT_FALSE(timeline.marks_cycles());
  const std::vector<Json> moments = with_phase(records(), "i");
  ASSERT_EQ(moments.size(), 2u);
  EXPECT_EQ(moments[0]["pid"].number, 0);
  EXPECT_EQ(moments[0]["name"].string, "CYCLE_START");
  EXPECT_EQ(moments[0]["s"].string, "g");
  EXPECT_EQ(tensors(records())[static_cast<int>(moments[1]["pid"].number)], "w");
}

TEST_F(TimelineTest, SaysWhenItStartedAsHorovodsReadersExpect) {
  Timeline timeline;
  const double before = static_cast<double>(time(nullptr)) * 1e6;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timeline.stop();
  EXPECT_NE(text().find(R"("start_time_since_epoch_in_micros":)"), std::string::npos);
  EXPECT_GE(records()[0]["args"]["start_time_since_epoch_in_micros"].number, before);
}

TEST_F(TimelineTest, AnEndWithoutABeginningIsLeftOut) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timeline.end("begun.before.start");
  timeline.begin("w", "ALLREDUCE");
  timeline.end("w");
  timeline.end("w");
  timeline.stop();
  EXPECT_EQ(with_phase(records(), "E").size(), 1u);
}

TEST_F(TimelineTest, AnUnwritablePathIsNamedWithItsReason) {
  Timeline timeline;
  Status status = timeline.start(path("no/such/folder.json"), false);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "timeline file '" + path("no/such/folder.json") +
                                  "' cannot be opened for writing: No such file or directory");
  EXPECT_FALSE(timeline.enabled());
}

TEST_F(TimelineTest, APipeThatNobodyReadsHangsNobody) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0666), 0);
  Timeline timeline;
  const Status status = timeline.start(path("pipe"), false);
  EXPECT_EQ(status.message(), "timeline file '" + path("pipe") +
                                  "' cannot be opened for writing: it is a pipe that nobody reads");
}

TEST_F(TimelineTest, AFailedStartLeavesTheOpenFileGoing) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  EXPECT_FALSE(timeline.start(path("no/such/folder.json"), false).is_ok());
  timeline.begin("w", "ALLREDUCE");
  timeline.stop();
  EXPECT_EQ(with_phase(records(), "B").size(), 1u);
}

TEST_F(TimelineTest, StartsAndStopsAgainAndAgain) {
  Timeline timeline;
  for (int i = 0; i < 20; ++i) {
    const std::string name = "timeline" + std::to_string(i % 2);
    ASSERT_TRUE(timeline.start(path(name), false).is_ok());
    timeline.begin("w" + std::to_string(i), "ALLREDUCE");
    timeline.stop();
    EXPECT_EQ(tensors(records(name)),
              (std::map<int, std::string>{{0, "perseus"}, {1, "w" + std::to_string(i)}}));
  }
}

TEST_F(TimelineTest, AStartEndsTheFileBefore) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path("first"), false).is_ok());
  timeline.begin("w", "FIRST");
  ASSERT_TRUE(timeline.start(path("second"), false).is_ok());
  timeline.begin("w", "SECOND");
  ASSERT_TRUE(timeline.start(path("second"), false).is_ok());
  timeline.begin("w", "THIRD");
  timeline.stop();
  EXPECT_EQ(with_phase(records("first"), "B").at(0)["name"].string, "FIRST");
  EXPECT_EQ(with_phase(records("second"), "B").size(), 1u);
  EXPECT_EQ(with_phase(records("second"), "B").at(0)["name"].string, "THIRD");
}

TEST_F(TimelineTest, StopWhileOtherThreadsRecordLeavesAWholeFile) {
  Timeline timeline;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!done.load()) {
        for (int i = 0; i < 100; ++i) {
          timeline.begin("w", "ALLREDUCE");
          timeline.end("w");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(timeline.start(path(), false).is_ok());
    timeline.begin("mine", "ALLREDUCE");
    timeline.stop();
    EXPECT_GE(with_phase(records(), "B").size(), 1u);
  }
  done.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TimelineTest, AKilledProcessLeavesWhatHappenedLoadable) {
  const pid_t child = fork();
  if (child == 0) {
    Timeline timeline;
    if (!timeline.start(path(), false).is_ok()) _exit(1);
    timeline.begin("w", "ALLREDUCE");
    timeline.end("w");
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  // Without a stop, the events must be in the file within a second.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (text().find("\"E\"") == std::string::npos && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(JsonReader::read(text()).has_value()) << "only the bracket should be missing";
  std::optional<Json> json = JsonReader::read(text() + "]");
  ASSERT_TRUE(json.has_value()) << text();
  EXPECT_EQ(with_phase(json->array, "B").size(), 1u);
  EXPECT_EQ(with_phase(json->array, "E").size(), 1u);
}

TEST_F(TimelineTest, AnIdleWriterUsesNoProcessorTime) {
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const timespec pause_time{0, 300'000'000};
  nanosleep(&pause_time, nullptr);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  timeline.stop();
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  EXPECT_LT(used, 0.03);
}

TEST_F(TimelineTest, AFileWithoutRoomForItsHeadIsAnError) {
  Timeline timeline;
  Status status = timeline.start("/dev/full", false);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "timeline file '/dev/full' cannot be written: No space left on device");
  EXPECT_FALSE(timeline.enabled());
}

TEST_F(TimelineTest, AWriteThatFailsEndsTheTimelineAndNothingElse) {
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const rlimit small{8192, unlimited.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  Timeline timeline;
  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (timeline.enabled() && std::chrono::steady_clock::now() < give_up) {
    timeline.instant("w", "READY");
  }
  EXPECT_FALSE(timeline.enabled());
  timeline.stop();
  setrlimit(RLIMIT_FSIZE, &unlimited);
  signal(SIGXFSZ, SIG_DFL);

  ASSERT_TRUE(timeline.start(path(), false).is_ok());
  timeline.instant("w", "READY");
  timeline.stop();
  EXPECT_EQ(with_phase(records(), "i").size(), 1u);
}

}  // namespace
}  // namespace perseus
