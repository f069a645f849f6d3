/* The limit of memory: what each rank has is read once and written once, all ranks at once.
 *
 * No allreduce can do with less: it must read what it is given and write what it gives, and end
 * after the last rank has begun. The ranks meet in a file that all map, beside the conductor's
 * socket.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "contender.h"

typedef struct {
  _Atomic uint32_t arrived;
  _Atomic uint32_t generation;
} meeting_t;

static meeting_t* meeting;
static uint32_t ranks;
/* Where results of an allreduce in place go: a copy onto itself would be none. */
static float* copy;
static size_t capacity;

/* Sleeps: with more ranks than cores, one that polls would hold up those that it waits for. */
static void barrier(void) {
  const uint32_t now = atomic_load(&meeting->generation);
  if (atomic_fetch_add(&meeting->arrived, 1) + 1 == ranks) {
    atomic_store(&meeting->arrived, 0);
    atomic_fetch_add(&meeting->generation, 1);
    syscall(SYS_futex, &meeting->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return;
  }
  while (atomic_load(&meeting->generation) == now) {
    syscall(SYS_futex, &meeting->generation, FUTEX_WAIT, now, NULL, NULL, 0);
  }
}

static const float* allreduce(float* input, float* output, size_t elements) {
  if (output == NULL && capacity < elements) {
    free(copy);
    copy = malloc(elements * sizeof(float));
    capacity = copy == NULL ? 0 : elements;
    if (copy == NULL) return contender_failed("out of memory");
  }
  float* to = output == NULL ? copy : output;
  memcpy(to, input, elements * sizeof(float));
  barrier();
  return to;
}

static int number(const char* name) {
  const char* value = getenv(name);
  return value == NULL ? -1 : atoi(value);
}

int main(void) {
  const char* beside = getenv("BENCH_SOCKET");
  if (beside == NULL) return 2;
  char path[512];
  snprintf(path, sizeof path, "%s.meeting", beside);
  const int file = open(path, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, 4096) != 0) return 1;
  void* page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) return 1;
  meeting = page;
  const contender_t contender = {.rank = number("RANK"),
                                 .size = number("WORLD_SIZE"),
                                 .allreduce = allreduce,
                                 .barrier = barrier,
                                 .is_limit = 1};
  ranks = (uint32_t)contender.size;
  return contender_serve(&contender);
}
