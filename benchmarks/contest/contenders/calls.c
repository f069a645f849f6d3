#include "calls.h"

#include <stdio.h>
#include <stdlib.h>

enum { kWarmUp = 10 };

typedef struct {
  int count;
  size_t elements;
  int ids[kMostCalls];
  float* data[kMostCalls];
} calls_t;

static void fill(calls_t* calls, float value) {
  for (int c = 0; c < calls->count; ++c) {
    for (size_t i = 0; i < calls->elements; ++i) calls->data[c][i] = value;
  }
}

static int make(const contender_t* contender, calls_t* calls) {
  for (int c = 0; c < calls->count; ++c) {
    char name[64];
    snprintf(name, sizeof name, "call%d.%zu", c, calls->elements);
    calls->ids[c] = contender->name(name);
    calls->data[c] = malloc(calls->elements * sizeof(float));
    if (calls->data[c] == NULL) return contender_failed("out of memory") != NULL;
    if (calls->ids[c] < 0) return 0;
  }
  return 1;
}

static int begin(const contender_t* contender, calls_t* calls) {
  for (int c = 0; c < calls->count; ++c) {
    if (!contender->begin(calls->ids[c], calls->data[c], calls->elements, -c)) return 0;
  }
  return 1;
}

static int check(const contender_t* contender, calls_t* calls) {
  fill(calls, 1);
  if (!begin(contender, calls) || !contender->end()) return 0;
  for (int c = 0; c < calls->count; ++c) {
    if (!contender_require(calls->data[c], calls->elements, (float)contender->size)) return 0;
  }
  fill(calls, 0); /* otherwise repeated sums would overflow */
  return 1;
}

static int measure(const contender_t* contender, calls_t* calls, int until_handed_over,
                   long iterations, double* times) {
  if (!make(contender, calls) || !check(contender, calls)) return 0;
  for (long i = -kWarmUp; i < iterations; ++i) {
    if (calls->count > 1 || until_handed_over) contender->barrier();
    const double began = contender_microseconds();
    if (!begin(contender, calls)) return 0;
    const double handed_over = contender_microseconds();
    if (!contender->end()) return 0;
    const double done = contender->ended_at ? contender->ended_at() : contender_microseconds();
    if (i >= 0) times[i] = (until_handed_over ? handed_over : done) - began;
  }
  return 1;
}

int calls_run(const contender_t* contender, size_t elements, int calls, int until_handed_over,
              long iterations, double* times) {
  calls_t made = {.count = calls, .elements = elements};
  const int done = measure(contender, &made, until_handed_over, iterations, times);
  for (int c = 0; c < made.count; ++c) free(made.data[c]);
  return done;
}
