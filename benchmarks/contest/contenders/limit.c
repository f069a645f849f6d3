/* The limit of memory: every rank reads its data once and writes it once, all at the same time.
 *
 * No allreduce can do less: it must read its input and write its result, and can end only after
 * the last rank has begun. The ranks meet in a file that all of them map, beside the conductor's
 * socket.
 *
 * There are several ways to do this, and which is fastest depends on the machine and on the size.
 * A plain store first reads the line that it overwrites, unless the line is in a cache, as it is
 * when data is changed in place. A streaming store does not, but bypasses caches that may hold all
 * of the data. memcpy chooses between the two by the size alone. So each size is tried with all
 * ways, and the one with the lowest median is taken: only that can be called a limit. With
 * LIMIT_WAY=memcpy in the environment only memcpy is tried, to measure a copy.
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
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "serve.h"

typedef struct {
  _Atomic uint32_t arrived;
  _Atomic uint32_t generation;
  _Atomic uint32_t way; /* rank 0's choice */
} meeting_t;

enum { kTrials = 5, kLine = 16, kChunk = 32 << 10 }; /* the latter two in elements */

static meeting_t* meeting;
static uint32_t ranks;
static int is_first;
/* The destination of copies, for an allreduce in place. */
static float* copy;
static size_t capacity;

/* Sleeps: with more ranks than cores, a rank that polls would delay those that it waits for. */
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

static void copy_all(float* to, const float* from, size_t elements) {
  memcpy(to, from, elements * sizeof(float));
}

/* Writes to the same place. Adding 0 keeps the compiler from removing it: it turns -0 into 0. */
static void change(float* to, const float* from, size_t elements) {
  typedef float line_t __attribute__((vector_size(kLine * sizeof(float)), aligned(4)));
  size_t i = 0;
  for (; i + kLine <= elements; i += kLine) *(line_t*)(to + i) = *(const line_t*)(from + i) + 0.0f;
  for (; i < elements; ++i) to[i] = from[i] + 0.0f;
}

#ifdef __SSE2__
/* Also writes to the same place. Source and destination start at a multiple of 16 bytes, as
 * malloc's blocks and the chunks do. */
static void stream(float* to, const float* from, size_t elements) {
  size_t i = 0;
  for (; i + kLine <= elements; i += kLine) {
    const __m128 a = _mm_load_ps(from + i), b = _mm_load_ps(from + i + 4);
    const __m128 c = _mm_load_ps(from + i + 8), d = _mm_load_ps(from + i + 12);
    _mm_stream_ps(to + i, a);
    _mm_stream_ps(to + i + 4, b);
    _mm_stream_ps(to + i + 8, c);
    _mm_stream_ps(to + i + 12, d);
  }
  for (; i < elements; ++i) to[i] = from[i];
  _mm_sfence();
}

/* Alternates between longer stretches of reads and of writes: memory loses time at each switch
 * between the two. */
static void stream_by_chunks(float* to, const float* from, size_t elements) {
  static float chunk[kChunk] __attribute__((aligned(64)));
  for (size_t i = 0; i < elements; i += kChunk) {
    const size_t count = elements - i < kChunk ? elements - i : kChunk;
    memcpy(chunk, from + i, count * sizeof(float));
    stream(to + i, chunk, count);
  }
}
#endif

static const struct {
  const char* name;
  void (*run)(float* to, const float* from, size_t elements);
  int in_place;
} ways[] = {
    {"memcpy", copy_all, 0},          {"in place", change, 1},
#ifdef __SSE2__
    {"streamed", stream, 0},          {"streamed by chunks", stream_by_chunks, 0},
    {"streamed in place", stream, 1}, {"streamed in place by chunks", stream_by_chunks, 1},
#endif
};
enum { kWays = sizeof ways / sizeof ways[0] };

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int ascending(const void* a, const void* b) {
  const double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

/* Measures from the moment that all begin until the last rank ends. */
static double median(uint32_t way, float* to, const float* from, size_t elements) {
  double times[kTrials];
  for (int trial = -1; trial < kTrials; ++trial) {
    barrier();
    const double began = microseconds();
    ways[way].run(to, from, elements);
    barrier();
    if (trial >= 0) times[trial] = microseconds() - began;
  }
  qsort(times, kTrials, sizeof times[0], ascending);
  return times[kTrials / 2];
}

/* All ranks use rank 0's choice. `output` is NULL for a sum in place. */
static uint32_t choose(float* input, float* output, size_t elements) {
  const char* only = getenv("LIMIT_WAY");
  double least = 0;
  for (uint32_t way = 0; way < kWays; ++way) {
    if (output != NULL && ways[way].in_place) continue;
    if (only != NULL && strcmp(only, ways[way].name) != 0) continue;
    float* elsewhere = output == NULL ? copy : output;
    const double time = median(way, ways[way].in_place ? input : elsewhere, input, elements);
    if (is_first && (least == 0 || time < least)) {
      least = time;
      atomic_store(&meeting->way, way);
    }
  }
  barrier();
  return atomic_load(&meeting->way);
}

static const float* allreduce(float* input, float* output, size_t elements) {
  static uint32_t way;
  static size_t chosen_for;
  static int chosen_in_place;
  if (output == NULL && capacity < elements) {
    free(copy);
    copy = malloc(elements * sizeof(float));
    capacity = copy == NULL ? 0 : elements;
    if (copy == NULL) return contender_failed("out of memory");
  }
  if (chosen_for != elements || chosen_in_place != (output == NULL)) {
    way = choose(input, output, elements);
    chosen_for = elements;
    chosen_in_place = output == NULL;
    contender_note(ways[way].name);
  }
  float* to = ways[way].in_place ? input : output == NULL ? copy : output;
  ways[way].run(to, input, elements);
  barrier();
  return to;
}

/* The first rank copies its data twice, as it would have to go there and back. */
static const float* pingpong(float* input, float* output, size_t elements) {
  if (!is_first) return input;
  copy_all(output, input, elements);
  copy_all(output, input, elements);
  return output;
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
                                 .pingpong = pingpong,
                                 .barrier = barrier,
                                 .is_limit = 1};
  ranks = (uint32_t)contender.size;
  is_first = contender.rank == 0;
  return contender_serve(&contender);
}
