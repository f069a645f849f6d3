/* What runs in each rank of a contender written in C: the same as contest/worker.py. */
#ifndef CONTEST_SERVE_H_
#define CONTEST_SERVE_H_

#include "contender.h"

/* Connects to the Unix socket $BENCH_SOCKET, says `hello RANK SIZE PID`, and answers lines:
 * `run WORK key=value ...` by `times t0 t1 ...`, microseconds of each iteration, maybe with
 * ` # NOTE`, or by `error TEXT`; `end` by returning. Returns an exit status. One thread. */
int contender_serve(const contender_t* contender);

#endif /* CONTEST_SERVE_H_ */
