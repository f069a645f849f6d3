#include "contender.h"

#include <stdio.h>
#include <time.h>

static char reason[512];
static const char* note;

void contender_note(const char* text) { note = text; }

const char* contender_last_note(void) { return note; }

const float* contender_failed(const char* text) {
  snprintf(reason, sizeof reason, "%s", text);
  return NULL;
}

const char* contender_reason(void) { return reason; }

int contender_require(const float* result, size_t elements, float expected) {
  for (size_t i = 0; i < elements; ++i) {
    if (result[i] == expected) continue;
    snprintf(reason, sizeof reason, "wrong result: element %zu is %g, not %g", i, result[i],
             expected);
    return 0;
  }
  return 1;
}

double contender_microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}
