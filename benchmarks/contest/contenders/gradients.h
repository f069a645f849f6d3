/* Reduces all gradients of a model at once: `gradients` of contest/works/step.py, in C. */
#ifndef CONTEST_GRADIENTS_H_
#define CONTEST_GRADIENTS_H_

#include "contender.h"

/* Runs one step before the timed ones, in which sums are checked. Returns 0 after
 * contender_failed. */
int gradients_run(const contender_t* contender, const char* model, long iterations, double* times);

#endif /* CONTEST_GRADIENTS_H_ */
