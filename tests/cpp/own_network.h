// A network of a test's own, in which the system has few ports to assign.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <vector>

#include "base/file_descriptor.h"

namespace perseus::test {

inline constexpr int kFirst = 40000, kLast = 40007;

inline FileDescriptor tcp_socket() {
  return FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

inline const sockaddr* any(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Makes a network of this process's own, where the system has eight ports to assign.
inline bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  ifreq lo{};
  lo.ifr_name[0] = 'l';
  lo.ifr_name[1] = 'o';
  lo.ifr_flags = IFF_UP;
  if (ioctl(tcp_socket().get(), SIOCSIFFLAGS, &lo) != 0) return false;
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  return static_cast<bool>(range << kFirst << ' ' << kLast << std::flush);
}

// Runs `body` there, in a child process; it returns 0 if all is well.
template <typename Body>
void run_in_own_network(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(enter_own_network() ? body() : 77);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "only root can make a network";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Listens at all ports that the system assigns.
inline std::vector<FileDescriptor> take_all() {
  std::vector<FileDescriptor> taken;
  for (int port = kFirst; port <= kLast; ++port) {
    taken.push_back(tcp_socket());
    const sockaddr_in address = loopback(port);
    if (bind(taken.back().get(), any(address), sizeof address) != 0) _exit(50);
    if (listen(taken.back().get(), 8) != 0) _exit(51);
  }
  return taken;
}

}  // namespace perseus::test
