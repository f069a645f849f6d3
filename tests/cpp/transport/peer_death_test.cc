// Tests links whose peer's process dies, with real processes and real signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/fork_bootstrap.h"
#include "transport/thread_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

class PeerDeathTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, PeerDeathTest, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

// Reports that it is up and runs its loop until it is killed. Before that, once its connections are
// made, it forks a worker, which lives until `test_pipe` ends with the test.
[[noreturn]] void live_until_killed(ForkBootstrap::Shared* shared, const Settings& settings,
                                    int test_pipe) {
  EventLoop loop;
  TestListener listener(loop);
  ForkBootstrap bootstrap(shared, 1);
  auto mesh = Mesh::create(loop, settings, bootstrap);
  if (!mesh.is_ok()) _exit(1);
  mesh.value()->listen(listener);
  const std::string text = "up";
  mesh.value()->send_control(0, std::as_bytes(std::span(text)));
  while (listener.controls.empty()) loop.run_once(100ms);
  if (fork() == 0) {
    char byte;
    _exit(read(test_pipe, &byte, 1) == 0 ? 0 : 1);
  }
  mesh.value()->send_control(0, std::as_bytes(std::span(text)));
  loop.run();
  _exit(2);
}

struct Survivor {
  Status received, sent, later;
  std::vector<TestListener::Loss> lost;
  std::chrono::milliseconds noticed_after{0};
};

Task survive(EventLoop& loop, Mesh& mesh, TestListener& listener, pid_t child, Survivor& survivor) {
  while (listener.controls.size() < 2) {
    if (listener.controls.size() == 1) mesh.send_control(1, std::as_bytes(std::span("seen")));
    auto news = listener.news();
    co_await news;
  }
  std::vector<std::byte> bytes(64 << 20);
  Transfer in, out, later;
  mesh.link(1).receive(in, Tag{1, 0, 0}, bytes.data(), 8);
  mesh.link(1).send(out, Tag{2, 0, 0}, bytes.data(), bytes.size(), 0);
  const auto killed_at = Clock::now();
  kill(child, SIGKILL);
  survivor.received = co_await in;
  survivor.noticed_after =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed_at);
  survivor.sent = co_await out;
  mesh.link(1).send(later, Tag{3, 0, 0}, bytes.data(), 8, 0);
  survivor.later = co_await later;
  while (listener.lost.empty()) {
    auto news = listener.news();
    co_await news;
  }
  NextTurn next{loop};
  co_await next;
  survivor.lost = listener.lost;
  co_return Status::ok();
}

TEST_P(PeerDeathTest, EveryTransferEndsAtOnceNamingTheRankThoughForkedWorkersLiveOn) {
  auto* shared = ForkBootstrap::make_shared_memory();
  ASSERT_NE(shared, nullptr);
  const Settings settings = test_settings({{"PERSEUS_TRANSPORT", GetParam()}});
  int test_pipe[2];
  ASSERT_EQ(pipe(test_pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(test_pipe[1]);
    live_until_killed(shared, settings, test_pipe[0]);
  }
  ASSERT_GT(child, 0);
  close(test_pipe[0]);

  Survivor survivor;
  {
    EventLoop loop;
    TestListener listener(loop);
    ForkBootstrap bootstrap(shared, 0);
    auto mesh = Mesh::create(loop, settings, bootstrap);
    ASSERT_TRUE(mesh.is_ok()) << mesh.status().message();
    mesh.value()->listen(listener);
    RankRun run(loop, *mesh.value(), 5s);
    loop.post([&] { survive(loop, *mesh.value(), listener, child, survivor).start(&run); });
    loop.run();
  }
  int exit_status = 0;
  waitpid(child, &exit_status, 0);
  EXPECT_TRUE(WIFSIGNALED(exit_status));
  for (const Status& status : {survivor.received, survivor.sent, survivor.later}) {
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("lost rank 1 on "), std::string::npos) << status.message();
  }
  ASSERT_EQ(survivor.lost.size(), 1u);
  EXPECT_EQ(survivor.lost[0].peer, 1);
  EXPECT_EQ(survivor.lost[0].why.message(), survivor.received.message());
  EXPECT_LT(survivor.noticed_after, 2000ms);
  close(test_pipe[1]);
}

}  // namespace
}  // namespace perseus
