/* Runs in each rank of a contender written in C: the counterpart of contest/worker.py. */
#ifndef CONTEST_SERVE_H_
#define CONTEST_SERVE_H_

#include "contender.h"

/* Connects to the Unix socket $BENCH_SOCKET, says `hello RANK SIZE PID`, and answers lines: it
 * answers `run WORK key=value ...` with `times t0 t1 ...`, microseconds of each iteration,
 * optionally followed by ` # NOTE`, or with `error TEXT`, and returns on `end`. Returns an exit
 * status. For one thread. */
int contender_serve(const contender_t* contender);

#endif /* CONTEST_SERVE_H_ */
