// Two ranks whose hosts are told apart by PERSEUS_HOSTNAME: real processes, since that is read from
// the environment.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "transport/fork_bootstrap.h"
#include "transport/thread_world.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

Task exchange(RankContext& rank) {
  Link& link = rank.mesh.link(1 - rank.rank);
  int mine = rank.rank, theirs = -1;
  Transfer out, in;
  link.receive(in, Tag{1, 0, 0}, &theirs, sizeof theirs);
  link.send(out, Tag{1, 0, 0}, &mine, sizeof mine, 0);
  Status sent = co_await out;
  Status received = co_await in;
  if (!sent.is_ok() || !received.is_ok()) co_return sent.is_ok() ? received : sent;
  const bool right = theirs == 1 - rank.rank && rank.mesh.topology().host_names.size() == 2 &&
                     rank.mesh.topology().cross_size() == 2 &&
                     rank.mesh.counters().data_bytes_sent_tcp == sizeof mine &&
                     rank.mesh.counters().data_bytes_sent_shm == 0;
  co_return right ? Status::ok() : Status::internal("the ranks are not on two hosts");
}

Status run_process(ForkBootstrap::Shared* shared, int rank, const Settings& settings,
                   const std::string& weakness) {
  EventLoop loop;
  TestListener listener(loop);
  ForkBootstrap bootstrap(shared, rank, weakness);
  auto mesh = Mesh::create(loop, settings, bootstrap);
  if (!mesh.is_ok()) return mesh.status();
  mesh.value()->listen(listener);
  ThreadRendezvous unused(1);
  RankContext context{rank, 2, loop, *mesh.value(), listener, unused};
  RankRun run(loop, *mesh.value(), 5s);
  loop.post([&] { exchange(context).start(&run); });
  loop.run();
  return run.status;
}

// Returns the outcome here, and expects that of the child on the other "host" to have the same
// code. `weakness`: of the job's secret.
Status run_on_two_hosts(const Settings& settings, const std::string& weakness = "") {
  auto* shared = ForkBootstrap::make_shared_memory();
  const pid_t child = fork();
  if (child == 0) {
    setenv("PERSEUS_HOSTNAME", "elsewhere", 1);
    _exit(static_cast<int>(run_process(shared, 1, settings, weakness).code()));
  }
  const Status status = run_process(shared, 0, settings, weakness);
  int exit_status = 0;
  waitpid(child, &exit_status, 0);
  EXPECT_TRUE(WIFEXITED(exit_status));
  EXPECT_EQ(WEXITSTATUS(exit_status), static_cast<int>(status.code()));
  return status;
}

TEST(HostsTest, AutoUsesTcpBetweenHosts) {
  const Status status = run_on_two_hosts(test_settings());
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(HostsTest, ShmRefusesToLeaveTheHost) {
  const Status status = run_on_two_hosts(test_settings({{"PERSEUS_TRANSPORT", "shm"}}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("elsewhere"), std::string::npos) << status.message();
}

TEST(HostsTest, AProtectedWireCarriesData) {
  for (const char* wire : {"authenticated", "encrypted"}) {
    const Status status = run_on_two_hosts(test_settings({{"PERSEUS_WIRE", wire}}));
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
}

TEST(HostsTest, AProtectedWireNeedsASecretThatNobodyKnows) {
  const std::string weakness = "is written on the wall";
  const Status refused = run_on_two_hosts(test_settings({{"PERSEUS_WIRE", "encrypted"}}), weakness);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("the job's secret, which is written on the wall; set "
                                   "PERSEUS_SECRET"),
            std::string::npos)
      << refused.message();
  EXPECT_TRUE(run_on_two_hosts(test_settings(), weakness).is_ok());
}

TEST(HostsTest, ALibraryThatIsMissingIsNamedOnEveryRank) {
  const Status status = run_on_two_hosts(test_settings(
      {{"PERSEUS_WIRE", "authenticated"}, {"PERSEUS_OPENSSL_LIBRARY", "/nowhere/libcrypto.so"}}));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  for (const char* part : {"rank 0", "PERSEUS_WIRE is authenticated", "/nowhere/libcrypto.so"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace perseus
