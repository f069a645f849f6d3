// The addresses of a rendezvous server, and the sockets and names that it is made of.
#include "bootstrap/rendezvous_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/rendezvous_bootstrap.h"
#include "rendezvous_job.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;

TEST(RendezvousServer, NamesAnAddressThatItCannotServe) {
  auto first = serve(1);
  auto second = RendezvousServer::start("127.0.0.1", first->port(), 1, kSecret);
  EXPECT_EQ(second.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(second.status().message().find("127.0.0.1:" + std::to_string(first->port())),
            std::string::npos)
      << second.status().message();
}

TEST(RendezvousServer, ServesAtEachOfItsAddressesAndNoOther) {
  auto server =
      RendezvousServer::start(std::vector<std::string>{"127.0.0.1", "127.0.0.2"}, 0, 2, kSecret);
  ASSERT_TRUE(server.is_ok()) << server.status().message();
  on_threads(2, [&](int rank) {
    auto options = options_for(*server.value(), rank, 2);
    options.servers[0].host = rank == 0 ? "127.0.0.1" : "127.0.0.2";
    auto bootstrap = RendezvousBootstrap::create(options);
    ASSERT_TRUE(bootstrap.is_ok()) << bootstrap.status().message();
    expect_gathers(*bootstrap.value(), 1, "each");
  });
  auto options = options_for(*server.value(), 0, 2);
  options.servers[0].host = "127.0.0.3";
  options.time_out = milliseconds(100);
  EXPECT_EQ(RendezvousBootstrap::create(options).status().code(), StatusCode::kUnreachable);
}

// Otherwise a data loader's worker would keep the port in use after its parent has been replaced.
TEST(Socket, IsClosedInAForkedChild) {
  auto listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok()) << listener.status().message();
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(listener.value().fd(), F_GETFD) == -1 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HostPort, ReadsNamesAndAddresses) {
  EXPECT_EQ(parse_host_port("node7:4711").value().host, "node7");
  EXPECT_EQ(parse_host_port("[fe80::1]:80").value().host, "fe80::1");
  EXPECT_EQ(parse_host_port("10.0.0.1:65535").value().port, 65535);
  EXPECT_EQ(to_string(parse_host_port("[::1]:80").value()), "[::1]:80");
  for (const char* bad :
       {"", "host", "host:", ":80", "host:0", "host:65536", "host:8x", "::1:80"}) {
    EXPECT_EQ(parse_host_port(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace perseus
