#include "bootstrap/port_holder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "bootstrap/socket.h"
#include "own_network.h"

namespace perseus {
namespace {

TEST(PortHolder, OfOnePortIsNamed) {
  const Result<Socket> listener = Socket::listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.is_ok()) << listener.status().message();
  const std::string holder = holder_of_port(listener.value().local_port());
  EXPECT_TRUE(holder.starts_with("process " + std::to_string(getpid()) + " of user ")) << holder;
}

TEST(PortHolder, OfMostPortsThatTheSystemAssignsIsNamed) {
  test::run_in_own_network([] {
    if (!holder_of_assigned_ports().empty()) return 1;
    const std::vector<FileDescriptor> taken = test::take_all();
    const std::string holder = holder_of_assigned_ports();
    return holder.ends_with(" listens at 8 of the 8 ports that the system assigns") ? 0 : 2;
  });
}

}  // namespace
}  // namespace perseus
