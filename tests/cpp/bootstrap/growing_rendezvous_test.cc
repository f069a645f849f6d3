// The rendezvous of a job whose launcher adds ranks, and numbers their meetings.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous_bootstrap.h"
#include "bootstrap/rendezvous_server.h"

namespace perseus {
namespace {

class GrowingRendezvous : public testing::Test {
 protected:
  static constexpr const char* kJobSecret = "the secret of a job that grows";

  void SetUp() override {
    auto server = RendezvousServer::start("127.0.0.1", 0, 0, kJobSecret);
    ASSERT_TRUE(server.is_ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  // What these ranks come to when they meet, in the order of the list.
  std::vector<Status> meet(const std::vector<int>& ranks, int meeting,
                           const std::vector<int>& missing = {}) {
    std::vector<Status> came(ranks.size());
    std::vector<std::thread> threads;
    for (size_t place = 0; place < ranks.size(); ++place) {
      if (std::ranges::find(missing, ranks[place]) != missing.end()) continue;
      threads.emplace_back([&, place] {
        RendezvousBootstrap::Options options;
        options.servers = {HostPort{"127.0.0.1", server_->port()}};
        options.secret = kJobSecret;
        options.rank = static_cast<int>(place);
        options.size = static_cast<int>(ranks.size());
        options.ranks = ranks;
        options.generation = meeting;
        options.is_numbered = true;
        options.time_out = std::chrono::seconds(10);
        auto bootstrap = RendezvousBootstrap::create(options);
        if (!bootstrap.is_ok()) {
          came[place] = bootstrap.status();
          return;
        }
        const auto time_out = std::chrono::milliseconds(missing.empty() ? 10000 : 300);
        auto all = bootstrap.value()->all_gather(std::to_string(ranks[place]), time_out);
        came[place] = all.status();
        for (size_t i = 0; all.is_ok() && i < ranks.size(); ++i) {
          EXPECT_EQ(all.value()[i], std::to_string(ranks[i]));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return came;
  }

  void expect_meeting(const std::vector<int>& ranks, int meeting) {
    for (const Status& status : meet(ranks, meeting)) {
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
  }

  std::unique_ptr<RendezvousServer> server_;
};

TEST_F(GrowingRendezvous, RanksMeetOnceTheyHaveBeenAdded) {
  for (const char* host : {"a", "a"}) server_->add_rank(host);
  expect_meeting({0, 1}, 1);
  EXPECT_NE(meet({0, 2}, 2, {0})[1].message().find("rank 2 was asked for in a job of 2"),
            std::string::npos);
  server_->add_rank("b");
  expect_meeting({1, 2, 0}, 3);
}

TEST_F(GrowingRendezvous, ErrorsNameTheHostOfAnAddedRank) {
  for (const char* host : {"a", "b"}) server_->add_rank(host);
  server_->note_ended(1, "exited with code 7");
  EXPECT_NE(meet({0, 1}, 1, {1})[0].message().find("rank 1 on b exited with code 7"),
            std::string::npos);
}

// The launcher's number counts, whatever each rank has been through.
TEST_F(GrowingRendezvous, ARankThatMissedAMeetingComesToTheNext) {
  for (const char* host : {"a", "a", "a"}) server_->add_rank(host);
  EXPECT_EQ(meet({0, 1, 2}, 1, {2})[0].code(), StatusCode::kTimedOut);
  expect_meeting({0, 1, 2}, 2);
}

// The others ask the launcher for another meeting, and wait for it there.
TEST_F(GrowingRendezvous, ARankThatComesLateToAFailedMeetingIsToldSoAtOnce) {
  for (const char* host : {"a", "a", "a"}) server_->add_rank(host);
  meet({0, 1, 2}, 1, {2});
  const auto began = std::chrono::steady_clock::now();
  const Status late = meet({0, 1, 2}, 1, {0, 1})[2];
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(250));
  EXPECT_EQ(late.code(), StatusCode::kAborted);
  EXPECT_NE(late.message().find("the others have left this meeting: the 3 ranks did not all meet"),
            std::string::npos)
      << late.message();
  expect_meeting({0, 1, 2}, 2);
}

}  // namespace
}  // namespace perseus
