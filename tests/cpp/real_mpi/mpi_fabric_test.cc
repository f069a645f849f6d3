// Tests what is particular to moving data by MPI; the conformance suite tests the rest.
#include "transport/mpi/mpi_fabric.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <string>

#include "bootstrap/single_bootstrap.h"
#include "real_mpi/mpi_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

Settings mpi_settings() { return test_settings({{"PERSEUS_TRANSPORT", "mpi"}}); }

TEST(MpiFabric, IsRefusedToRanksThatMpiDidNotLaunch) {
  EventLoop loop;
  SingleBootstrap alone;
  const auto fabric = make_mpi_fabric(loop, mpi_settings(), alone);
  EXPECT_EQ(fabric.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(fabric.status().message().find("mpirun"), std::string::npos);
}

// One message around the ring of ranks and back, so that every rank waits most of the time.
Task pass_around(RankContext& rank, uint32_t step) {
  const int next = (rank.rank + 1) % rank.size;
  const int previous = (rank.rank + rank.size - 1) % rank.size;
  uint32_t token = step;
  Transfer out, in;
  if (rank.rank == 0) {
    rank.mesh.link(next).send(out, Tag{1, 0, step}, &token, sizeof token, 0);
    Status sent = co_await out;
    if (!sent.is_ok()) co_return sent;
  }
  uint32_t received = ~0u;
  rank.mesh.link(previous).receive(in, Tag{1, 0, step}, &received, sizeof received);
  Status status = co_await in;
  EXPECT_EQ(received, step);
  if (rank.rank == 0 || !status.is_ok()) co_return status;
  rank.mesh.link(next).send(out, Tag{1, 0, step}, &received, sizeof received, 0);
  co_return co_await out;
}

TEST(MpiFabric, AMessageGoesRoundTheRanksAgainAndAgain) {
  expect_world_ok(world_maker.largest, mpi_settings(), [](RankContext& rank) -> Task {
    for (uint32_t step = 0; step < 50; ++step) {
      Task task = pass_around(rank, step);
      Status status = co_await std::move(task);
      if (!status.is_ok()) co_return status;
    }
    co_return Status::ok();
  });
}

TEST(MpiFabric, WorldsComeAndGoInOneProcess) {
  for (int i = 0; i < 20; ++i) {
    expect_world_ok(world_maker.largest, mpi_settings(),
                    [](RankContext& rank) { return pass_around(rank, 0); });
  }
}

std::chrono::microseconds processor_time() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto of = [](const timeval& t) {
    return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

struct Until {
  EventLoop& loop;
  std::chrono::milliseconds time;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    loop.call_at(Clock::now() + time, [loop = &loop, handle] { loop->schedule(handle); });
  }
  void await_resume() const noexcept {}
};

TEST(MpiFabric, AnIdleLoopSleeps) {
  expect_world_ok(world_maker.largest, mpi_settings(), [](RankContext& rank) -> Task {
    Task task = pass_around(rank, 0);
    Status status = co_await std::move(task);
    // Ends what is under way; then nothing is left.
    Until settled{rank.loop, 200ms};
    co_await settled;
    const auto before = processor_time();
    Until later{rank.loop, 1000ms};
    co_await later;
    EXPECT_LT(processor_time() - before, 5ms);
    co_return status;
  });
}

TEST(MpiFabric, WaitingForAStragglerCostsLittle) {
  expect_world_ok(2, mpi_settings(), [](RankContext& rank) -> Task {
    Task task = pass_around(rank, 0);
    Status status = co_await std::move(task);
    if (rank.rank == 1) {
      Until late{rank.loop, 1000ms};
      co_await late;
    }
    const auto before = processor_time();
    Task again = pass_around(rank, 1);
    Status second = co_await std::move(again);
    EXPECT_LT(processor_time() - before, 300ms);
    co_return status.is_ok() ? second : status;
  });
}

}  // namespace
}  // namespace perseus
