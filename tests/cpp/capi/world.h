// Runs a function in N real processes that form a Perseus world, and reports what failed in them.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "perseus/perseus.h"

namespace perseus::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

// In a rank's process: ends it with a message unless the condition holds.
#define REQUIRE(condition)                                                                 \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: rank %d: %s does not hold; last error: %s\n", __FILE__, \
                   __LINE__, perseus_rank(), #condition, perseus_last_error());            \
      std::fflush(stderr);                                                                 \
      _exit(1);                                                                            \
    }                                                                                      \
  } while (0)

class World {
 public:
  explicit World(int size, Environment environment = {})
      : size_(size), environment_(std::move(environment)) {}

  // Forks the ranks before anything in this process has a thread, serves their rendezvous, and
  // waits for them. `body` runs between init and shutdown.
  void run(const std::function<void(int rank)>& body) {
    start(body, /*initialize=*/true);
    finish();
  }
  // The same without init and shutdown: `body` calls them.
  void run_bare(const std::function<void(int rank)>& body) {
    start(body, /*initialize=*/false);
    finish();
  }

 private:
  void start(const std::function<void(int rank)>& body, bool initialize) {
    int port_pipe[2];
    ASSERT_EQ(pipe(port_pipe), 0);
    for (int rank = 0; rank < size_; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) run_rank(rank, port_pipe[0], body, initialize);
      children_.push_back(child);
    }
    int32_t port = 0;
    ASSERT_EQ(perseus_rendezvous_start("127.0.0.1", &port, size_, kSecret, nullptr, &rendezvous_),
              PERSEUS_OK)
        << perseus_last_error();
    for (int rank = 0; rank < size_; ++rank) {
      ASSERT_EQ(write(port_pipe[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    }
    close(port_pipe[0]);
    close(port_pipe[1]);
  }

  [[noreturn]] void run_rank(int rank, int port_pipe, const std::function<void(int rank)>& body,
                             bool initialize) {
    alarm(kTimeLimitSeconds);
    int32_t port = 0;
    if (read(port_pipe, &port, sizeof port) != static_cast<ssize_t>(sizeof port)) _exit(2);
    setenv("PERSEUS_RANK", std::to_string(rank).c_str(), 1);
    setenv("PERSEUS_SIZE", std::to_string(size_).c_str(), 1);
    setenv("PERSEUS_RENDEZVOUS", ("127.0.0.1:" + std::to_string(port)).c_str(), 1);
    setenv("PERSEUS_SECRET", kSecret, 1);
    for (const auto& [name, value] : environment_) setenv(name.c_str(), value.c_str(), 1);
    if (initialize) REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    body(rank);
    if (initialize) REQUIRE(perseus_shutdown() == PERSEUS_OK);
    std::fflush(nullptr);
    _exit(0);
  }

  void finish() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      int status = 0;
      waitpid(children_[rank], &status, 0);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << (WIFSIGNALED(status) ? " ended by signal " : " exited with ")
          << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    perseus_rendezvous_stop(rendezvous_);
  }

  static constexpr unsigned kTimeLimitSeconds = 120;
  static constexpr const char* kSecret = "00112233445566778899aabbccddeeff";
  const int size_;
  const Environment environment_;
  std::vector<pid_t> children_;
  perseus_rendezvous_t* rendezvous_ = nullptr;
};

inline bool last_error_has(const std::string& part) {
  return std::string(perseus_last_error()).find(part) != std::string::npos;
}

// A tensor of the caller's, and one operation on it.
class Submission {
 public:
  Submission(perseus_operation_t operation, const std::string& name,
             perseus_process_set_t set = PERSEUS_WORLD) {
    REQUIRE(perseus_register(set, operation, name.c_str(), &raw.id) == PERSEUS_OK);
    raw.struct_size = sizeof raw;
    raw.prescale = raw.postscale = 1.0;
    raw.reduce_op = PERSEUS_SUM;
  }
  // Shapes must outlive submit.
  Submission& tensor(const void* input, void* output, const std::vector<int64_t>& shape,
                     perseus_dtype_t dtype) {
    tensors_.push_back({input, output, shape.data(), static_cast<int32_t>(shape.size()), dtype});
    raw.tensors = tensors_.data();
    raw.tensor_count = static_cast<int32_t>(tensors_.size());
    return *this;
  }
  perseus_handle_t submit() {
    perseus_handle_t handle = 0;
    REQUIRE(perseus_submit(&raw, &handle) == PERSEUS_OK);
    return handle;
  }
  // Submits, waits and releases.
  perseus_status_t run() {
    perseus_handle_t handle = 0;
    perseus_status_t status = perseus_submit(&raw, &handle);
    if (status != PERSEUS_OK) return status;
    status = perseus_wait(handle, -1);
    perseus_release(handle);
    return status;
  }

  perseus_submission_t raw{};

 private:
  std::vector<perseus_tensor_t> tensors_;
};

// Waits for an operation to succeed, and describes its first result.
inline perseus_result_t wait_for_result(perseus_handle_t handle) {
  REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
  perseus_result_t result{};
  result.struct_size = sizeof result;
  REQUIRE(perseus_result(handle, 0, &result) == PERSEUS_OK);
  return result;
}

}  // namespace perseus::test
