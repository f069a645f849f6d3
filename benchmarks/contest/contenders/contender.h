/* What runs in each rank of a contender written in C: the same as contest/worker.py.
 *
 * contender_serve connects to the Unix socket $BENCH_SOCKET, says `hello RANK SIZE PID`, and
 * answers lines: `run WORK key=value ...` by `times t0 t1 ...`, microseconds of each iteration,
 * maybe with ` # NOTE`, or by `error TEXT`; `end` by returning. One thread.
 */
#ifndef CONTEST_CONTENDER_H_
#define CONTEST_CONTENDER_H_

#include <stddef.h>

/* Gives where the result is, once it is there: `output`, `input` or memory of the contender's that
 * lives until its next call. NULL after contender_failed. `elements` are those of the input. */
typedef const float* (*contender_operation_t)(float* input, float* output, size_t elements);

typedef struct {
  int rank;
  int size;
  /* NULL: the interface has none. */
  contender_operation_t allreduce; /* a sum; in place if output is NULL */
  contender_operation_t broadcast; /* in place, from rank 0 */
  contender_operation_t allgather;
  contender_operation_t alltoall;      /* equal parts */
  contender_operation_t reducescatter; /* a sum */
  void (*barrier)(void);
  /* Sums of tensors over the ranks, in place: the number by which a name is known from then on, or
   * -1; whether one could be handed over; whether all that were have ended well. */
  int (*name)(const char* name);
  int (*begin)(int name, float* data, size_t elements, int priority);
  int (*end)(void);
  /* When the last of them ended, by contender_microseconds, where something tells of it before end
   * returns; NULL where nothing does. */
  double (*ended_at)(void);
  int is_limit; /* the operations move bytes and sum nothing */
} contender_t;

/* How the work is done, in a few words; the table shows rank 0's beside the times. The text must
 * live on. */
void contender_note(const char* text);
/* Keeps the reason, for the conductor, and gives NULL. */
const float* contender_failed(const char* reason);
/* Whether every element is `expected`; if not, the reason is kept. */
int contender_require(const float* result, size_t elements, float expected);
double contender_microseconds(void);
/* Gives an exit status. */
int contender_serve(const contender_t* contender);

#endif /* CONTEST_CONTENDER_H_ */
