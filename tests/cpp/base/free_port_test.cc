#include "base/free_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/file_descriptor.h"
#include "own_network.h"

namespace perseus {
namespace {

int port_of(const FileDescriptor& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

TEST(FreePort, IsFoundThoughAllThatTheSystemAssignsAreTaken) {
  test::run_in_own_network([] {
    const std::vector<FileDescriptor> taken = test::take_all();
    const sockaddr_in address = test::loopback(0);
    const FileDescriptor one = test::tcp_socket(), another = test::tcp_socket();
    if (bind(one.get(), test::any(address), sizeof address) == 0 || errno != EADDRINUSE) return 1;
    for (const FileDescriptor* fd : {&one, &another}) {
      if (bind_to(fd->get(), test::any(address), sizeof address) != 0) return 2;
      if (port_of(*fd) < 1024 || assigned_ports().has(port_of(*fd))) return 3;
    }
    return port_of(one) == port_of(another) ? 4 : 0;
  });
}

TEST(FreePort, IsFoundForACallToo) {
  test::run_in_own_network([] {
    const std::vector<FileDescriptor> taken = test::take_all();
    const sockaddr_in address = test::loopback(test::kFirst);
    const FileDescriptor fd = test::tcp_socket(), unbound = test::tcp_socket();
    if (connect(unbound.get(), test::any(address), sizeof address) == 0) return 1;
    if (errno != EADDRNOTAVAIL) return 2;
    if (connect_to(fd.get(), test::any(address), sizeof address) != 0) return 3;
    return assigned_ports().has(port_of(fd)) ? 4 : 0;
  });
}

TEST(FreePort, OneThatIsNamedIsThatOne) {
  test::run_in_own_network([] {
    const std::vector<FileDescriptor> taken = test::take_all();
    const sockaddr_in address = test::loopback(test::kFirst);
    return bind_to(test::tcp_socket().get(), test::any(address), sizeof address) == EADDRINUSE ? 0
                                                                                               : 1;
  });
}

}  // namespace
}  // namespace perseus
