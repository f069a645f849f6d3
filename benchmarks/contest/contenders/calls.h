/* Measures single calls: benchmarks/calls.py. */
#ifndef CONTEST_CALLS_H_
#define CONTEST_CALLS_H_

#include <stddef.h>

#include "contender.h"

enum { kMostCalls = 256 };

/* Times iterations of `calls` concurrent allreduces of `elements` elements each: until all are
 * handed over, if `until_handed_over`, else until all are done. A sum is checked first. Returns 0
 * after contender_failed. */
int calls_run(const contender_t* contender, size_t elements, int calls, int until_handed_over,
              long iterations, double* times);

#endif /* CONTEST_CALLS_H_ */
