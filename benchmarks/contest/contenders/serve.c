#include "serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "gradients.h"

enum { kWarmUp = 2, kMostTimes = 4096 };

typedef struct {
  char work[64];
  char name[64];
  long iterations;
  long elements;
  long calls;
  long in_place;
  long from_first;
  double pause;
} request_t;

static double times[kMostTimes];

static double processor_microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void fill(float* data, size_t elements, float value) {
  for (size_t i = 0; i < elements; ++i) data[i] = value;
}

static int parse(char* line, request_t* request) {
  *request = (request_t){.iterations = 1, .elements = 1, .calls = 1, .in_place = 1, .pause = 1.0};
  char* rest = line;
  const char* work = strtok_r(rest, " ", &rest);
  if (work == NULL) return 0;
  snprintf(request->work, sizeof request->work, "%s", work);
  for (char* word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
    char* value = strchr(word, '=');
    if (value == NULL) return 0;
    *value++ = '\0';
    if (strcmp(word, "iterations") == 0) {
      request->iterations = atol(value);
    } else if (strcmp(word, "elements") == 0) {
      request->elements = atol(value);
    } else if (strcmp(word, "calls") == 0) {
      request->calls = atol(value);
    } else if (strcmp(word, "in_place") == 0) {
      request->in_place = atol(value);
    } else if (strcmp(word, "from_first") == 0) {
      request->from_first = atol(value);
    } else if (strcmp(word, "name") == 0) {
      snprintf(request->name, sizeof request->name, "%s", value);
    } else if (strcmp(word, "pause") == 0) {
      request->pause = atof(value);
    } else {
      return 0;
    }
  }
  return request->iterations >= 1 && request->iterations <= kMostTimes && request->elements >= 1 &&
         request->calls >= 1 && request->calls <= kMostCalls;
}

static int idle(const contender_t* contender, const request_t* request) {
  contender->barrier();
  for (long i = 0; i < request->iterations; ++i) {
    const double began = processor_microseconds();
    usleep((useconds_t)(request->pause * 1e6));
    times[i] = (processor_microseconds() - began) / request->pause;
  }
  return 1;
}

/* An operation, and its expected result if rank r's input is r + 1 everywhere: `parts` equal parts.
 * The first part's elements are `expected`, and those of each next part are one more. */
typedef struct {
  contender_operation_t run;
  size_t input;
  size_t output;
  float expected;
  size_t parts;
  int together; /* ranks start each iteration together */
} plan_t;

static int find(const contender_t* contender, const request_t* request, plan_t* plan) {
  const size_t size = (size_t)contender->size;
  const size_t whole = (size_t)request->elements;
  const size_t even = whole - whole % size;
  const float mine = (float)(contender->rank + 1);
  const float sum = (float)(size * (size + 1) / 2);
  const int limit = contender->is_limit;
  if (strcmp(request->work, "collective.allreduce") == 0) {
    *plan = (plan_t){contender->allreduce, whole, whole, limit ? mine : sum, 1, 0};
  } else if (strcmp(request->work, "collective.broadcast") == 0) {
    *plan = (plan_t){contender->broadcast, whole, whole, 1, 1, 1};
  } else if (strcmp(request->work, "collective.allgather") == 0) {
    *plan = (plan_t){contender->allgather, whole, whole * size, 1, size, 0};
  } else if (strcmp(request->work, "collective.alltoall") == 0) {
    *plan = (plan_t){contender->alltoall, even, even, 1, size, 0};
  } else if (strcmp(request->work, "collective.reducescatter") == 0) {
    *plan = (plan_t){contender->reducescatter, even, even / size, sum, 1, 0};
  } else if (strcmp(request->work, "messages.pingpong") == 0) {
    *plan = (plan_t){contender->pingpong, whole, whole, limit ? mine : 1, 1, 0};
  } else {
    return 0;
  }
  return plan->run != NULL;
}

/* Checks every element. */
static int is_right(const plan_t* plan, const float* result) {
  const size_t elements = plan->output / plan->parts;
  for (size_t part = 0; part < plan->parts; ++part) {
    const float expected = plan->expected + (float)part;
    if (!contender_require(result + part * elements, elements, expected)) return 0;
  }
  return 1;
}

static int check(const contender_t* contender, const plan_t* plan, float* input, float* target) {
  fill(input, plan->input, (float)(contender->rank + 1));
  const float* result = plan->run(input, target, plan->input);
  return result != NULL && is_right(plan, result);
}

/* With from_first the first call is timed, too, and the check comes after all. */
static int measure(const contender_t* contender, const plan_t* plan, const request_t* request,
                   int in_place, float* input, float* output) {
  const int from_first = request->from_first != 0;
  float* const target = in_place ? NULL : output;
  fill(output, plan->output, 0);
  if (!from_first && !check(contender, plan, input, target)) return 0;
  fill(input, plan->input, 0);
  for (long i = from_first ? 0 : -kWarmUp; i < request->iterations; ++i) {
    if (plan->together) contender->barrier();
    const double began = contender_microseconds();
    if (plan->run(input, target, plan->input) == NULL) return 0;
    if (i >= 0) times[i] = contender_microseconds() - began;
  }
  return !from_first || check(contender, plan, input, target);
}

static int run(const contender_t* contender, const request_t* request) {
  if (strcmp(request->work, "collective.idle") == 0) return idle(contender, request);
  if (strcmp(request->work, "step.gradients") == 0 && contender->begin != NULL) {
    return gradients_run(contender, request->name, request->iterations, times);
  }
  const int until_handed_over = strcmp(request->work, "calls.handed_over") == 0;
  if (contender->begin != NULL && (until_handed_over || strcmp(request->work, "calls.done") == 0)) {
    return calls_run(contender, (size_t)request->elements, (int)request->calls, until_handed_over,
                     request->iterations, times);
  }
  plan_t plan = {0};
  if (!find(contender, request, &plan)) {
    char text[128];
    snprintf(text, sizeof text, "has no %s", request->work);
    return contender_failed(text) != NULL;
  }
  const int in_place = request->in_place && plan.run == contender->allreduce;
  float* input = malloc(plan.input * sizeof(float));
  float* output = malloc(plan.output * sizeof(float));
  int done = 0;
  if (input == NULL || output == NULL) {
    contender_failed("out of memory");
  } else {
    done = measure(contender, &plan, request, in_place, input, output);
  }
  free(input);
  free(output);
  return done;
}

static void answer(const contender_t* contender, char* line, FILE* out) {
  request_t request;
  if (!parse(line, &request)) {
    fprintf(out, "error not understood in C\n");
  } else if (!run(contender, &request)) {
    fprintf(out, "error %s\n", contender_reason());
  } else {
    fprintf(out, "times");
    for (long i = 0; i < request.iterations; ++i) fprintf(out, " %.2f", times[i]);
    if (contender_last_note() != NULL) fprintf(out, " # %s", contender_last_note());
    fprintf(out, "\n");
  }
  fflush(out);
}

int contender_serve(const contender_t* contender) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* as in contest/ending.py: works even while stopped */
  const char* path = getenv("BENCH_SOCKET");
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (path == NULL || strlen(path) >= sizeof address.sun_path) return 2;
  strcpy(address.sun_path, path);
  const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(connection, (struct sockaddr*)&address, sizeof address) != 0) {
    perror("connecting to the conductor");
    return 1;
  }
  FILE* in = fdopen(connection, "r");
  FILE* out = fdopen(dup(connection), "w");
  if (in == NULL || out == NULL) return 1;
  fprintf(out, "hello %d %d %d\n", contender->rank, contender->size, (int)getpid());
  fflush(out);
  char line[1024];
  while (fgets(line, sizeof line, in) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "run ", 4) != 0) break;
    answer(contender, line + 4, out);
  }
  return 0;
}
