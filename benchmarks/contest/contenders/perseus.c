/* Perseus through perseus.h. */
#include <perseus/perseus.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "serve.h"

/* With $CONTENDER_WAITS the submitting thread waits for each operation by perseus_wait, as MPI's
 * callers do, and there are no callbacks. Otherwise it sleeps, and callbacks wake it, as in most
 * adapters. */
static int waits;

/* The handle of the last operation, which owns the result; 0: none. */
static perseus_handle_t last;

/* Writes the id of the one name for this size, as a training program has; it registers a name once.
 * Each kind of operation has its own names. */
static int find_name(perseus_operation_t operation, size_t elements, int32_t* id) {
  static perseus_operation_t last_operation = -1;
  static size_t last_elements;
  static int32_t last_id;
  if (operation != last_operation || elements != last_elements) {
    char name[32];
    snprintf(name, sizeof name, "elements%zu", elements);
    if (perseus_register(PERSEUS_WORLD, operation, name, &last_id) != PERSEUS_OK) return 0;
    last_operation = operation;
    last_elements = elements;
  }
  *id = last_id;
  return 1;
}

static perseus_submission_t submission_of(const perseus_tensor_t* tensor) {
  return (perseus_submission_t){.struct_size = sizeof(perseus_submission_t),
                                .tensor_count = 1,
                                .tensors = tensor,
                                .reduce_op = PERSEUS_SUM,
                                .prescale = 1,
                                .postscale = 1};
}

static int submit(perseus_operation_t operation, const perseus_tensor_t* tensor,
                  const perseus_memory_t* offered, size_t elements) {
  perseus_submission_t submission = submission_of(tensor);
  submission.offered = offered;
  if (last != 0) perseus_release(last);
  last = 0;
  return find_name(operation, elements, &submission.id) &&
         perseus_submit(&submission, &last) == PERSEUS_OK && perseus_wait(last, -1) == PERSEUS_OK;
}

static const float* run_into(perseus_operation_t operation, float* input, float* output,
                             const perseus_memory_t* offered, size_t elements) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {input, output, &shape, 1, PERSEUS_FLOAT32};
  perseus_result_t result = {.struct_size = sizeof result};
  if (!submit(operation, &tensor, offered, elements) ||
      perseus_result(last, 0, &result) != PERSEUS_OK) {
    return contender_failed(perseus_last_error());
  }
  return result.data;
}

/* For results in memory of the caller's, in one call, as MPI_Allreduce. */
static const float* run(perseus_operation_t operation, float* input, float* output,
                        size_t elements) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {input, output, &shape, 1, PERSEUS_FLOAT32};
  perseus_submission_t submission = submission_of(&tensor);
  if (!find_name(operation, elements, &submission.id) ||
      perseus_run(&submission, -1, NULL) != PERSEUS_OK) {
    return contender_failed(perseus_last_error());
  }
  return output;
}

static const float* allreduce(float* input, float* output, size_t elements) {
  return run(PERSEUS_ALLREDUCE, input, output == NULL ? input : output, elements);
}

static const float* broadcast(float* input, float* output, size_t elements) {
  (void)output;
  return run(PERSEUS_BROADCAST, input, input, elements);
}

static const float* allgather(float* input, float* output, size_t elements) {
  const size_t bytes = elements * (size_t)perseus_size() * sizeof *output;
  return run_into(PERSEUS_ALLGATHER, input, NULL, &(perseus_memory_t){output, bytes}, elements);
}

static const float* alltoall(float* input, float* output, size_t elements) {
  const size_t bytes = elements * sizeof *output;
  return run_into(PERSEUS_ALLTOALL, input, NULL, &(perseus_memory_t){output, bytes}, elements);
}

static const float* reducescatter(float* input, float* output, size_t elements) {
  return run_into(PERSEUS_REDUCESCATTER, input, output, NULL, elements);
}

static int transfer(perseus_status_t (*begin)(const perseus_transfer_t*, perseus_handle_t*),
                    float* data, size_t elements) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {data, data, &shape, 1, PERSEUS_FLOAT32};
  const perseus_transfer_t message = {
      .struct_size = sizeof message, .peer = 1 - perseus_rank(), .tensor = &tensor};
  perseus_handle_t handle = 0;
  if (begin(&message, &handle) != PERSEUS_OK) return 0;
  const int is_done = perseus_wait(handle, -1) == PERSEUS_OK;
  perseus_release(handle);
  return is_done;
}

static const float* pingpong(float* input, float* output, size_t elements) {
  const int is_first = perseus_rank() == 0;
  const int is_done =
      is_first
          ? transfer(perseus_send, input, elements) && transfer(perseus_recv, output, elements)
          : transfer(perseus_recv, output, elements) && transfer(perseus_send, output, elements);
  return is_done ? output : contender_failed(perseus_last_error());
}

static int name(const char* text) {
  int32_t id = -1;
  if (perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, text, &id) == PERSEUS_OK) return id;
  contender_failed(perseus_last_error());
  return -1;
}

/* The number of incomplete operations, plus one until this thread has submitted them all. */
static atomic_int under_way = 1;
static sem_t all_complete;
static atomic_int failures;
static double last_callback; /* written before under_way goes down, read after all_complete */

enum { kMostHandles = 4096 };
static perseus_handle_t handles[kMostHandles];
static int handle_count;

static void one_less(void) {
  if (atomic_fetch_sub(&under_way, 1) == 1) sem_post(&all_complete);
}

static double ended_at(void) { return last_callback; }

static void complete(void* user, perseus_handle_t handle, perseus_status_t status,
                     const char* message) {
  (void)user;
  (void)message;
  if (status != PERSEUS_OK) atomic_fetch_add(&failures, 1);
  last_callback = contender_microseconds();
  perseus_release(handle);
  one_less();
}

/* Submits an operation that end() waits for. */
static int hand_over(perseus_submission_t submission) {
  submission.struct_size = sizeof submission;
  if (handle_count == kMostHandles) return contender_failed("too many operations") != NULL;
  if (!waits) {
    submission.callback = complete;
    submission.callback_thread = PERSEUS_CALLBACK_IN_LIBRARY;
    atomic_fetch_add(&under_way, 1);
  }
  if (perseus_submit(&submission, &handles[handle_count]) == PERSEUS_OK) {
    if (waits) ++handle_count;
    return 1;
  }
  if (!waits) one_less();
  return contender_failed(perseus_last_error()) != NULL;
}

static int begin(int name, float* data, size_t elements, int priority) {
  const int64_t shape = (int64_t)elements;
  const perseus_tensor_t tensor = {data, data, &shape, 1, PERSEUS_FLOAT32};
  return hand_over((perseus_submission_t){.id = name,
                                          .tensor_count = 1,
                                          .tensors = &tensor,
                                          .reduce_op = PERSEUS_SUM,
                                          .prescale = 1,
                                          .postscale = 1,
                                          .priority = priority});
}

static int end_by_waiting(void) {
  int succeeded = 0;
  for (int i = 0; i < handle_count; ++i) {
    succeeded += perseus_wait(handles[i], -1) == PERSEUS_OK;
    perseus_release(handles[i]);
  }
  const int all_did = succeeded == handle_count;
  handle_count = 0;
  return all_did || contender_failed(perseus_last_error()) != NULL;
}

static int end(void) {
  if (waits) return end_by_waiting();
  one_less();
  while (sem_wait(&all_complete) != 0) {
  }
  atomic_store(&under_way, 1);
  return atomic_load(&failures) == 0 || contender_failed("a gradient was not reduced") != NULL;
}

/* Waits for its end in the same way as for the operations after it: the library expects a thread
 * that has just waited to wait again, and it costs time if the thread does not. */
static void barrier(void) {
  static int32_t id = -1;
  if (id >= 0 || perseus_register(PERSEUS_WORLD, PERSEUS_BARRIER, "barrier", &id) == PERSEUS_OK) {
    if (hand_over((perseus_submission_t){.id = id})) end();
  }
}

int main(void) {
  waits = getenv("CONTENDER_WAITS") != NULL;
  if (sem_init(&all_complete, 0, 0) != 0) return 1;
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
                                 .pingpong = pingpong,
                                 .barrier = barrier,
                                 .name = name,
                                 .begin = begin,
                                 .end = end,
                                 .ended_at = waits ? NULL : ended_at};
  const int status = contender_serve(&contender);
  perseus_shutdown();
  return status;
}
