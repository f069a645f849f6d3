/* The communication of a training loop in C99, using only perseus.h: parameters from rank 0 to
 * all, gradients averaged in the order in which a backward pass yields them, and a gather of
 * different amounts from every rank. Each number is checked; a wrong one ends the program with 1.
 *
 *   cc -std=c99 allreduce.c -o allreduce $(python -m perseus.config --cflags --libs) -pthread -lm
 *   perseusrun -np 4 ./allreduce
 */
#include <math.h>
#include <perseus/perseus.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, STEPS = 3, COLUMNS = 3 };

/* A layer's gradient, and the operation on it. */
struct layer {
  const char* name;
  int64_t elements;
  float* gradient;
  int32_t id;
  perseus_handle_t handle;
  /* Written by the callback, read once `done` has been waited for. */
  perseus_status_t status;
  char message[256];
  sem_t done;
};

static void fail(const char* what) {
  fprintf(stderr, "rank %d: %s: %s\n", (int)perseus_rank(), what, perseus_last_error());
  exit(1);
}

static void check(perseus_status_t status, const char* what) {
  if (status != PERSEUS_OK) fail(what);
}

static void check_number(double found, double expected, const char* what) {
  if (fabs(found - expected) <= 1e-5 * fabs(expected)) return;
  fprintf(stderr, "rank %d: %s is %.9g, not %.9g\n", (int)perseus_rank(), what, found, expected);
  exit(1);
}

/* Fields that are not named are 0, which is right for all but the two factors. */
static perseus_submission_t submission_of(int32_t id, const perseus_tensor_t* tensor) {
  const perseus_submission_t submission = {
      .struct_size = sizeof submission,
      .id = id,
      .tensor_count = 1,
      .tensors = tensor,
      .prescale = 1.0,
      .postscale = 1.0,
  };
  return submission;
}

/* Runs on a thread of the library: records how the operation ended, and returns at once. */
static void gradient_done(void* user, perseus_handle_t handle, perseus_status_t status,
                          const char* message) {
  struct layer* layer = user;
  (void)handle;
  layer->status = status;
  snprintf(layer->message, sizeof layer->message, "%s", message);
  sem_post(&layer->done);
}

/* The values that `rank` computes in a step: small whole numbers, so that sums are exact. */
static float gradient_at(int rank, int step, int64_t i) {
  return (float)((rank + 1) * (i % 7 + 1) + step);
}

static double average_of(int size, int step, int64_t i) {
  return (size + 1) / 2.0 * (double)(i % 7 + 1) + step;
}

static void make_layers(struct layer* layers) {
  static const char* const names[LAYERS] = {"conv1", "conv2", "dense", "bias"};
  static const int64_t elements[LAYERS] = {432, 50000, 1200000, 10};
  for (int l = 0; l < LAYERS; ++l) {
    struct layer* layer = &layers[l];
    layer->name = names[l];
    layer->elements = elements[l];
    layer->gradient = malloc((size_t)elements[l] * sizeof(float));
    if (layer->gradient == NULL || sem_init(&layer->done, 0, 0) != 0) {
      perror("make_layers");
      exit(1);
    }
    /* Called once: after it, the engine and the ranks use a small number in place of the name. */
    check(perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, layer->name, &layer->id), "register");
  }
}

/* Backward yields the last layer's gradient first; the next forward pass needs the first layer's
 * first, hence its higher priority. Each is reduced while the next is being computed. */
static void backward(struct layer* layers, int step) {
  const int rank = perseus_rank();
  for (int l = LAYERS - 1; l >= 0; --l) {
    struct layer* layer = &layers[l];
    for (int64_t i = 0; i < layer->elements; ++i) layer->gradient[i] = gradient_at(rank, step, i);

    const perseus_tensor_t tensor = {layer->gradient, layer->gradient, &layer->elements, 1,
                                     PERSEUS_FLOAT32};
    perseus_submission_t submission = submission_of(layer->id, &tensor);
    submission.reduce_op = PERSEUS_AVERAGE;
    submission.priority = -l;
    submission.callback = gradient_done;
    submission.user = layer;
    check(perseus_submit(&submission, &layer->handle), layer->name);
  }
}

/* Waits for the gradients in the order in which forward uses the layers. */
static void next_forward(struct layer* layers, int step) {
  const int size = perseus_size();
  for (int l = 0; l < LAYERS; ++l) {
    struct layer* layer = &layers[l];
    while (sem_wait(&layer->done) != 0) continue; /* interrupted by a signal */
    if (layer->status != PERSEUS_OK) {
      fprintf(stderr, "rank %d: %s: %s (%s)\n", (int)perseus_rank(), layer->name, layer->message,
              perseus_status_name(layer->status));
      exit(1);
    }
    for (int64_t i = 0; i < layer->elements; ++i) {
      check_number(layer->gradient[i], average_of(size, step, i), layer->name);
    }
    perseus_release(layer->handle);
  }
}

static void broadcast_parameters(void) {
  double parameters[5];
  const int64_t shape[1] = {5};
  const perseus_tensor_t tensor = {parameters, parameters, shape, 1, PERSEUS_FLOAT64};
  int32_t id;
  perseus_handle_t handle;

  for (int i = 0; i < 5; ++i) parameters[i] = perseus_rank() == 0 ? i + 0.5 : -1;
  check(perseus_register(PERSEUS_WORLD, PERSEUS_BROADCAST, "parameters", &id), "register");
  perseus_submission_t submission = submission_of(id, &tensor);
  submission.root = 0;
  check(perseus_submit(&submission, &handle), "broadcast");
  check(perseus_wait(handle, -1), "broadcast");
  perseus_release(handle);
  for (int i = 0; i < 5; ++i) check_number(parameters[i], i + 0.5, "a parameter");
}

/* Rank r has r + 1 rows. No rank knows the result's size in advance, so the library allocates it.
 * */
static void gather_rows(void) {
  const int rank = perseus_rank(), size = perseus_size();
  const int64_t shape[2] = {rank + 1, COLUMNS};
  int64_t* rows = malloc((size_t)(shape[0] * COLUMNS) * sizeof *rows);
  const perseus_tensor_t tensor = {rows, NULL, shape, 2, PERSEUS_INT64};
  int32_t id;
  perseus_handle_t handle;

  if (rows == NULL) {
    perror("gather_rows");
    exit(1);
  }
  for (int64_t i = 0; i < shape[0] * COLUMNS; ++i) rows[i] = 1000 * rank + i;
  check(perseus_register(PERSEUS_WORLD, PERSEUS_ALLGATHER, "rows", &id), "register");
  const perseus_submission_t submission = submission_of(id, &tensor);
  check(perseus_submit(&submission, &handle), "allgather");
  check(perseus_wait(handle, -1), "allgather");
  free(rows); /* ours again, now that the operation is complete */

  perseus_result_t result = {.struct_size = sizeof result};
  check(perseus_result(handle, 0, &result), "result");
  check_number((double)result.shape[0], size * (size + 1) / 2.0, "the number of rows gathered");
  check_number((double)result.shape[1], COLUMNS, "the number of columns gathered");
  const int64_t* gathered = result.data;
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < (r + 1) * COLUMNS; ++i) {
      check_number((double)*gathered++, (double)(1000 * r + i), "a gathered number");
    }
  }
  perseus_release(handle); /* and with it the result */
}

static void show_counter(void* user, const char* name, uint64_t value) {
  static const char* const shown[] = {"agreements", "merges", "shards", "control_messages_sent"};
  (void)user;
  for (size_t i = 0; i < sizeof shown / sizeof *shown; ++i) {
    if (strcmp(name, shown[i]) == 0) printf("  %s: %llu\n", name, (unsigned long long)value);
  }
}

int main(void) {
  static struct layer layers[LAYERS];

  check(perseus_init(NULL), "init");
  printf("rank %d of %d, %d of %d on this host\n", (int)perseus_rank(), (int)perseus_size(),
         (int)perseus_local_rank(), (int)perseus_local_size());

  broadcast_parameters();
  make_layers(layers);
  for (int step = 0; step < STEPS; ++step) {
    backward(layers, step);
    next_forward(layers, step);
  }
  gather_rows();

  printf("rank %d: all numbers are right\n", (int)perseus_rank());
  if (perseus_rank() == 0) check(perseus_counters(show_counter, NULL), "counters");
  check(perseus_shutdown(), "shutdown");
  for (int l = 0; l < LAYERS; ++l) free(layers[l].gradient);
  return 0;
}
