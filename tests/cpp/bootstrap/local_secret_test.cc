#include "bootstrap/local_secret.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include "base/secret.h"

namespace perseus {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A name that no other test uses, in this run or one beside it.
std::string fresh_name() { return to_hex(random_bytes(16)); }

Socket::Clock::time_point in(milliseconds time) { return Socket::Clock::now() + time; }

// Runs `body` in a child process and returns its exit code.
template <typename Body>
int exit_code_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LocalSecret, IsWhatTheServingRankHasForEveryoneWhoAsks) {
  const std::string name = fresh_name();
  auto served = serve_local_secret(name);
  ASSERT_TRUE(served.is_ok()) << served.status().message();
  EXPECT_EQ(served.value().size(), kSecretBytes);
  for (int rank = 1; rank < 4; ++rank) {
    auto fetched = fetch_local_secret(name, in(seconds(10)));
    ASSERT_TRUE(fetched.is_ok()) << fetched.status().message();
    EXPECT_EQ(fetched.value(), served.value());
  }
  EXPECT_NE(serve_local_secret(fresh_name()).value(), served.value());
}

TEST(LocalSecret, MayBeAskedForBeforeItIsServed) {
  const std::string name = fresh_name();
  auto fetched = Result<std::string>(std::string());
  std::thread early([&] { fetched = fetch_local_secret(name, in(seconds(10))); });
  auto served = serve_local_secret(name);
  early.join();
  ASSERT_TRUE(fetched.is_ok()) << fetched.status().message();
  EXPECT_EQ(fetched.value(), served.value());
}

TEST(LocalSecret, NobodyThereIsAnErrorInTime) {
  const auto result = fetch_local_secret(fresh_name(), in(milliseconds(50)));
  EXPECT_EQ(result.status().code(), StatusCode::kUnreachable);
  EXPECT_NE(result.status().message().find("rank 0"), std::string::npos);
}

TEST(LocalSecret, ANameThatIsTakenIsAnError) {
  const std::string name = fresh_name();
  ASSERT_TRUE(serve_local_secret(name).is_ok());
  EXPECT_EQ(serve_local_secret(name).status().code(), StatusCode::kUnreachable);
}

TEST(LocalSecret, IsNeitherGivenToAnotherUserNorTakenFromOne) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const std::string name = fresh_name();
  ASSERT_TRUE(serve_local_secret(name).is_ok());
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(exit_code_of_child([&] {
              if (setuid(kNobody) != 0) return 1;
              const auto result = fetch_local_secret(name, in(seconds(10)));
              return result.status().message().find("another user") == std::string::npos ? 2 : 0;
            }),
            0);
  // A caller that does not check which user answers.
  EXPECT_EQ(exit_code_of_child([&] {
              if (setuid(kNobody) != 0) return 1;
              sockaddr_un address{};
              address.sun_family = AF_UNIX;
              const std::string path = '\0' + ("perseus-" + name);
              std::memcpy(address.sun_path, path.data(), path.size());
              const Socket socket(::socket(AF_UNIX, SOCK_STREAM, 0));
              const socklen_t size = offsetof(sockaddr_un, sun_path) + path.size();
              if (connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 3;
              char byte = 0;
              return recv(socket.fd(), &byte, 1, 0) == 0 ? 0 : 4;
            }),
            0);
}

}  // namespace
}  // namespace perseus
