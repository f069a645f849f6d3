#include "transport/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iostream>

namespace perseus {
namespace {

// Makes this process's kernel look like one before Linux 3.17.
bool remove_memfd_create() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(SharedMemoryDeathTest, AKernelWithoutItIsNamedWithAWayOut) {
  const auto create = [] {
    if (!remove_memfd_create()) _exit(1);
    std::cerr << SharedMemory::create(4096).status().message() << std::endl;
    _exit(0);
  };
  EXPECT_EXIT(create(), testing::ExitedWithCode(0),
              "this kernel has no memfd_create, .* set PERSEUS_TRANSPORT=tcp on all ranks");
}

TEST(SharedMemoryTest, AForkedChildDoesNotHaveIt) {
  const Result<SharedMemory> created = SharedMemory::create(4096);
  ASSERT_TRUE(created.is_ok());
  std::byte* const data = created.value().data();
  unsigned char resident = 0;
  ASSERT_EQ(mincore(data, 4096, &resident), 0);
  const pid_t child = fork();
  if (child == 0) _exit(mincore(data, 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  data[0] = std::byte{1};
}

}  // namespace
}  // namespace perseus
