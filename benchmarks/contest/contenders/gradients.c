#include "gradients.h"

#include <stdlib.h>
#include <string.h>

#include "models.h" /* compiled.py generates it from contest/models.py */

typedef struct {
  const model_t* model;
  float** data;
  int* ids;
} gradients_t;

static const model_t* find(const char* name) {
  for (size_t i = 0; i < sizeof models / sizeof *models; ++i) {
    if (strcmp(models[i].name, name) == 0) return &models[i];
  }
  return NULL;
}

static void fill(const gradients_t* gradients, float value) {
  for (size_t i = 0; i < gradients->model->count; ++i) {
    const size_t elements = gradients->model->tensors[i].elements;
    for (size_t k = 0; k < elements; ++k) gradients->data[i][k] = value;
  }
}

static int make(const contender_t* contender, gradients_t* gradients) {
  const size_t count = gradients->model->count;
  gradients->data = calloc(count, sizeof *gradients->data);
  gradients->ids = calloc(count, sizeof *gradients->ids);
  if (gradients->data == NULL || gradients->ids == NULL) {
    return contender_failed("out of memory") != NULL;
  }
  for (size_t i = 0; i < count; ++i) {
    gradients->ids[i] = contender->name(gradients->model->tensors[i].name);
    if (gradients->ids[i] < 0) return 0;
    gradients->data[i] = malloc(gradients->model->tensors[i].elements * sizeof(float));
    if (gradients->data[i] == NULL) return contender_failed("out of memory") != NULL;
  }
  return 1;
}

static void drop(gradients_t* gradients) {
  for (size_t i = 0; gradients->data != NULL && i < gradients->model->count; ++i) {
    free(gradients->data[i]);
  }
  free(gradients->data);
  free(gradients->ids);
}

/* The last layer's gradients come first, as in backward; the first layer's are the most urgent. */
static int reduce(const contender_t* contender, gradients_t* gradients) {
  for (size_t i = gradients->model->count; i-- > 0;) {
    const size_t elements = gradients->model->tensors[i].elements;
    if (!contender->begin(gradients->ids[i], gradients->data[i], elements, -(int)i)) return 0;
  }
  return contender->end();
}

static int check(const contender_t* contender, gradients_t* gradients) {
  fill(gradients, 1);
  if (!reduce(contender, gradients)) return 0;
  for (size_t i = 0; i < gradients->model->count; ++i) {
    if (!contender_require(gradients->data[i], gradients->model->tensors[i].elements,
                           (float)contender->size)) {
      return 0;
    }
  }
  fill(gradients, 0); /* otherwise repeated sums would overflow */
  return 1;
}

static int measure(const contender_t* contender, gradients_t* gradients, long iterations,
                   double* times) {
  if (!make(contender, gradients) || !check(contender, gradients)) return 0;
  for (long i = -1; i < iterations; ++i) {
    contender->barrier();
    const double began = contender_microseconds();
    if (!reduce(contender, gradients)) return 0;
    if (i >= 0) times[i] = contender_microseconds() - began;
  }
  return 1;
}

int gradients_run(const contender_t* contender, const char* model, long iterations, double* times) {
  gradients_t gradients = {.model = find(model)};
  if (gradients.model == NULL) return contender_failed("there is no such model") != NULL;
  const int done = measure(contender, &gradients, iterations, times);
  drop(&gradients);
  return done;
}
