/* A contender written in C: its operations, and how it and the works that measure it report results
 * and errors. For one thread. */
#ifndef CONTEST_CONTENDER_H_
#define CONTEST_CONTENDER_H_

#include <stddef.h>

/* Returns where the result is, once it is available: `output`, `input` or memory of the contender's
 * that lives until its next call. NULL after contender_failed. `elements` are those of the input.
 */
typedef const float* (*contender_operation_t)(float* input, float* output, size_t elements);

typedef struct {
  int rank;
  int size;
  /* NULL where the interface lacks the operation. */
  contender_operation_t allreduce; /* a sum; in place if output is NULL */
  contender_operation_t broadcast; /* in place, from rank 0 */
  contender_operation_t allgather;
  contender_operation_t alltoall;      /* equal parts */
  contender_operation_t reducescatter; /* a sum */
  contender_operation_t pingpong;      /* rank 0's input goes to rank 1 and back; two ranks */
  void (*barrier)(void);
  /* Sums of tensors over the ranks, in place. `name` returns the number that identifies a name from
   * then on, or -1; `begin` starts one sum and returns 0 if that failed; `end` waits for all and
   * returns 0 if one of them failed. */
  int (*name)(const char* name);
  int (*begin)(int name, float* data, size_t elements, int priority);
  int (*end)(void);
  /* When the last of them ended, by contender_microseconds, if the contender knows that before
   * `end` returns; else NULL. */
  double (*ended_at)(void);
  int is_limit; /* the operations move bytes and sum nothing */
} contender_t;

/* Says how the work is done, in a few words; the table shows rank 0's beside the times. The text
 * must live on. */
void contender_note(const char* text);
/* Returns the last note, or NULL if there was none. */
const char* contender_last_note(void);
/* Keeps the reason, for the conductor, and returns NULL. */
const float* contender_failed(const char* reason);
/* Returns the last reason. */
const char* contender_reason(void);
/* Returns whether every element is `expected`; if not, the reason is kept. */
int contender_require(const float* result, size_t elements, float expected);
double contender_microseconds(void);

#endif /* CONTEST_CONTENDER_H_ */
