/* Training in C99, with the gradient interface of perseus.h: a network of two layers learns to tell
 * points inside a circle from those outside. The gradients are registered once. In each batch they
 * are submitted as backward computes them, the last layer's first, and reduced meanwhile; each
 * layer waits for its own just before its update. Every rank computes a part of each batch, and all
 * have the same weights at the end: those that one process computes from whole batches, except for
 * rounding.
 *
 *   cc -std=c99 -O2 training.c -o training $(python -m perseus.config --cflags --libs) -pthread -lm
 *   perseusrun -np 4 ./training [FILE TO WRITE THE WEIGHTS TO]
 */
#include <math.h>
#include <perseus/perseus.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = 2, HIDDEN = 16, BATCH = 120, BATCHES = 1500, TESTED = 1000 };
static const double kRate = 0.5;

/* Weights, and the gradients that backward computes for them. */
struct layer {
  const char* name;
  int64_t shape[2]; /* outputs, inputs and one for the bias */
  double* weights;
  double* gradient;
  int32_t number; /* among the gradients */
};

/* Results of the callbacks. They only count, one at a time, and may run on any thread. */
struct progress {
  int64_t gradients;
  int64_t batches;
};

static void fail(const char* what) {
  fprintf(stderr, "rank %d: %s: %s\n", (int)perseus_rank(), what, perseus_last_error());
  exit(1);
}

static void check(perseus_status_t status, const char* what) {
  if (status != PERSEUS_OK) fail(what);
}

static void gradient_done(void* user, int32_t gradient, perseus_status_t status,
                          const char* message) {
  (void)gradient, (void)status, (void)message; /* the wait returns the status, too */
  ++((struct progress*)user)->gradients;
}

static void batch_done(void* user, int64_t batch, perseus_status_t status, const char* message) {
  (void)status, (void)message;
  ((struct progress*)user)->batches = batch + 1;
}

/* Returns a number from -1 to 1, from a state that is the same on all ranks. */
static double uniform(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) / (double)(1ull << 52) - 1.0;
}

static int64_t size_of(const struct layer* layer) { return layer->shape[0] * layer->shape[1]; }

static void make_layer(struct layer* layer, const char* name, int64_t outputs, int64_t inputs,
                       uint64_t* state) {
  layer->name = name;
  layer->shape[0] = outputs;
  layer->shape[1] = inputs + 1;
  layer->weights = malloc((size_t)size_of(layer) * sizeof(double));
  layer->gradient = malloc((size_t)size_of(layer) * sizeof(double));
  if (layer->weights == NULL || layer->gradient == NULL) {
    perror("make_layer");
    exit(1);
  }
  for (int64_t i = 0; i < size_of(layer); ++i) layer->weights[i] = uniform(state);
}

/* Gives all ranks rank 0's weights. */
static void broadcast(struct layer* layer) {
  const perseus_tensor_t tensor = {layer->weights, layer->weights, layer->shape, 2,
                                   PERSEUS_FLOAT64};
  perseus_submission_t submission = {
      .struct_size = sizeof submission, .tensor_count = 1, .tensors = &tensor, .root = 0};
  perseus_handle_t handle;
  check(perseus_register(PERSEUS_WORLD, PERSEUS_BROADCAST, layer->name, &submission.id),
        layer->name);
  check(perseus_submit(&submission, &handle), layer->name);
  check(perseus_wait(handle, -1), layer->name);
  perseus_release(handle);
}

/* Computes the outputs of a layer before its activation. */
static void apply(const struct layer* layer, const double* inputs, double* outputs) {
  const int64_t width = layer->shape[1];
  for (int64_t o = 0; o < layer->shape[0]; ++o) {
    const double* row = layer->weights + o * width;
    outputs[o] = row[width - 1];
    for (int64_t i = 0; i < width - 1; ++i) outputs[o] += row[i] * inputs[i];
  }
}

/* Adds one point's contribution to a layer's gradient. */
static void add_gradient(struct layer* layer, const double* inputs, const double* of_outputs) {
  const int64_t width = layer->shape[1];
  for (int64_t o = 0; o < layer->shape[0]; ++o) {
    double* row = layer->gradient + o * width;
    for (int64_t i = 0; i < width - 1; ++i) row[i] += of_outputs[o] * inputs[i];
    row[width - 1] += of_outputs[o];
  }
}

static double is_inside(const double* point) {
  return point[0] * point[0] + point[1] * point[1] < 0.5 ? 1.0 : 0.0;
}

static double predict(const struct layer* layers, const double* point, double* hidden) {
  double score;
  apply(&layers[0], point, hidden);
  for (int h = 0; h < HIDDEN; ++h) hidden[h] = tanh(hidden[h]);
  apply(&layers[1], hidden, &score);
  return 1.0 / (1.0 + exp(-score));
}

/* Computes the gradients of this rank's points. The last layer's come first, and are reduced while
 * the first layer's are computed. */
static void backward(struct layer* layers, perseus_gradients_t* gradients,
                     double points[][INPUTS]) {
  static double hidden[BATCH][HIDDEN], error[BATCH];
  const int rank = perseus_rank(), size = perseus_size();
  for (int l = 1; l >= 0; --l) {
    struct layer* layer = &layers[l];
    for (int64_t i = 0; i < size_of(layer); ++i) layer->gradient[i] = 0.0;
    for (int p = rank; p < BATCH; p += size) {
      if (l == 1) {
        error[p] = (predict(layers, points[p], hidden[p]) - is_inside(points[p])) / BATCH;
        add_gradient(layer, hidden[p], &error[p]);
      } else {
        double of_hidden[HIDDEN];
        for (int h = 0; h < HIDDEN; ++h) {
          of_hidden[h] = error[p] * layers[1].weights[h] * (1.0 - hidden[p][h] * hidden[p][h]);
        }
        add_gradient(layer, points[p], of_hidden);
      }
    }
    check(perseus_gradients_submit(gradients, layer->number, PERSEUS_NO_STREAM), layer->name);
  }
}

/* Updates each layer as soon as its gradient is reduced, in the order in which forward needs them.
 * */
static void update(struct layer* layers, perseus_gradients_t* gradients) {
  for (int l = 0; l < 2; ++l) {
    struct layer* layer = &layers[l];
    check(perseus_gradients_wait(gradients, layer->number, -1), layer->name);
    for (int64_t i = 0; i < size_of(layer); ++i) layer->weights[i] -= kRate * layer->gradient[i];
  }
}

static void write_weights(const struct layer* layers, const char* path) {
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  for (int l = 0; l < 2; ++l) {
    for (int64_t i = 0; i < size_of(&layers[l]); ++i) {
      fprintf(file, "%.17g\n", layers[l].weights[i]);
    }
  }
  fclose(file);
}

int main(int count, char** arguments) {
  struct layer layers[2];
  struct progress progress = {0, 0};
  perseus_gradients_t* gradients;
  const perseus_gradients_options_t options = {
      .struct_size = sizeof options,
      .name = "circle",
      .reduce_op = PERSEUS_SUM, /* each rank has divided by the whole batch */
      .gradient_done = gradient_done,
      .batch_done = batch_done,
      .user = &progress,
      .callback_thread = PERSEUS_CALLBACK_IN_WAIT,
  };

  check(perseus_init(NULL), "init");
  uint64_t state = 1 + (uint64_t)perseus_rank(); /* differs, until rank 0's weights come */
  make_layer(&layers[0], "hidden", HIDDEN, INPUTS, &state);
  make_layer(&layers[1], "output", 1, HIDDEN, &state);
  check(perseus_gradients_create(&options, &gradients), "gradients");
  for (int l = 0; l < 2; ++l) {
    const perseus_tensor_t tensor = {layers[l].gradient, NULL, layers[l].shape, 2, PERSEUS_FLOAT64};
    broadcast(&layers[l]);
    check(perseus_gradients_add(gradients, layers[l].name, &tensor, &layers[l].number),
          layers[l].name);
  }

  static double points[BATCH][INPUTS];
  double hidden[HIDDEN];
  state = 12345; /* the same points on all ranks, of which each takes its own */
  for (int batch = 0; batch < BATCHES; ++batch) {
    for (int p = 0; p < BATCH; ++p) {
      for (int i = 0; i < INPUTS; ++i) points[p][i] = uniform(&state);
    }
    backward(layers, gradients, points);
    update(layers, gradients);
  }
  perseus_gradients_destroy(gradients); /* from here on no callback runs */
  if (progress.batches != BATCHES || progress.gradients != 2 * BATCHES) {
    fprintf(stderr, "not all batches were told of\n");
    return 1;
  }

  int right = 0;
  for (int p = 0; p < TESTED; ++p) {
    const double point[INPUTS] = {uniform(&state), uniform(&state)};
    right += (predict(layers, point, hidden) > 0.5) == (is_inside(point) > 0.5);
  }
  if (perseus_rank() == 0) {
    printf("%d processes: %.1f %% of the points are told apart\n", (int)perseus_size(),
           100.0 * right / TESTED);
    if (count > 1) write_weights(layers, arguments[1]);
  }
  check(perseus_shutdown(), "shutdown");
  for (int l = 0; l < 2; ++l) {
    free(layers[l].weights);
    free(layers[l].gradient);
  }
  return right > 9 * TESTED / 10 ? 0 : 1;
}
