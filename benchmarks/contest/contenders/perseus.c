/* Perseus through perseus.h. */
#include <perseus/perseus.h>
#include <stdio.h>

#include "contender.h"

/* Of the last operation: its result lives as long as it. 0 is none. */
static perseus_handle_t last;

static int submit(perseus_operation_t operation, const perseus_tensor_t* tensor) {
  /* One name for each size, as a training program has; equal names of other kinds are others. */
  char name[32];
  snprintf(name, sizeof name, "elements%lld", (long long)tensor->shape[0]);
  perseus_submission_t submission = {.struct_size = sizeof submission,
                                     .tensor_count = 1,
                                     .tensors = tensor,
                                     .reduce_op = PERSEUS_SUM,
                                     .prescale = 1,
                                     .postscale = 1};
  if (last != 0) perseus_release(last);
  last = 0;
  return perseus_register(PERSEUS_WORLD, operation, name, &submission.id) == PERSEUS_OK &&
         perseus_submit(&submission, &last) == PERSEUS_OK && perseus_wait(last, -1) == PERSEUS_OK;
}

static const float* run(perseus_operation_t operation, float* input, float* output,
                        size_t elements) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {input, output, &shape, 1, PERSEUS_FLOAT32};
  perseus_result_t result = {.struct_size = sizeof result};
  if (!submit(operation, &tensor) || perseus_result(last, 0, &result) != PERSEUS_OK) {
    return contender_failed(perseus_last_error());
  }
  return result.data;
}

static const float* allreduce(float* input, float* output, size_t elements) {
  return run(PERSEUS_ALLREDUCE, input, output == NULL ? input : output, elements);
}

static const float* broadcast(float* input, float* output, size_t elements) {
  (void)output;
  return run(PERSEUS_BROADCAST, input, input, elements);
}

static const float* allgather(float* input, float* output, size_t elements) {
  (void)output; /* Perseus allocates: ranks may give different numbers of rows */
  return run(PERSEUS_ALLGATHER, input, NULL, elements);
}

static const float* alltoall(float* input, float* output, size_t elements) {
  (void)output;
  return run(PERSEUS_ALLTOALL, input, NULL, elements);
}

static const float* reducescatter(float* input, float* output, size_t elements) {
  return run(PERSEUS_REDUCESCATTER, input, output, elements);
}

static int name(const char* text) {
  int32_t id = -1;
  if (perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, text, &id) == PERSEUS_OK) return id;
  contender_failed(perseus_last_error());
  return -1;
}

static long begin(int name, float* data, size_t elements) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {data, data, &shape, 1, PERSEUS_FLOAT32};
  const perseus_submission_t submission = {.struct_size = sizeof submission,
                                           .id = name,
                                           .tensor_count = 1,
                                           .tensors = &tensor,
                                           .reduce_op = PERSEUS_SUM,
                                           .prescale = 1,
                                           .postscale = 1};
  perseus_handle_t handle = 0;
  if (perseus_submit(&submission, &handle) != PERSEUS_OK) contender_failed(perseus_last_error());
  return (long)handle;
}

static int end(long handle) {
  const int done = perseus_wait((perseus_handle_t)handle, -1) == PERSEUS_OK;
  if (!done) contender_failed(perseus_last_error());
  perseus_release((perseus_handle_t)handle);
  return done;
}

static void barrier(void) {
  const int64_t shape = 0;
  const perseus_tensor_t none = {NULL, NULL, &shape, 1, PERSEUS_UINT8};
  submit(PERSEUS_BARRIER, &none);
}

int main(void) {
  if (perseus_init(NULL) != PERSEUS_OK) {
    fprintf(stderr, "%s\n", perseus_last_error());
    return 1;
  }
  const contender_t contender = {.rank = perseus_rank(),
                                 .size = perseus_size(),
                                 .allreduce = allreduce,
                                 .broadcast = broadcast,
                                 .allgather = allgather,
                                 .alltoall = alltoall,
                                 .reducescatter = reducescatter,
                                 .barrier = barrier,
                                 .name = name,
                                 .begin = begin,
                                 .end = end};
  const int status = contender_serve(&contender);
  perseus_shutdown();
  return status;
}
