/* The smallest program with several ranks: each prints its rank, and they sum a number.
 *
 *   cc -std=c99 hello.c -o hello $(python -m perseus.config --cflags --libs)
 *   perseusrun -np 4 ./hello          (or mpirun -np 4 ./hello)
 */
#include <perseus/perseus.h>
#include <stdio.h>
#include <stdlib.h>

static void check(perseus_status_t status) {
  if (status == PERSEUS_OK) return;
  fprintf(stderr, "hello: %s\n", perseus_last_error());
  exit(1);
}

int main(void) {
  check(perseus_init(NULL)); /* blocks until all ranks are there */

  double number = perseus_rank() + 1;
  const perseus_tensor_t tensor = {
      .input = &number, .output = &number, .dtype = PERSEUS_FLOAT64}; /* a scalar has no shape */
  perseus_submission_t submission = {
      .struct_size = sizeof submission,
      .tensor_count = 1,
      .tensors = &tensor,
      .reduce_op = PERSEUS_SUM,
      .prescale = 1.0,
      .postscale = 1.0,
  };
  perseus_handle_t handle;
  check(perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "number", &submission.id));
  check(perseus_submit(&submission, &handle)); /* returns at once */
  check(perseus_wait(handle, -1));
  perseus_release(handle);

  printf("hello from rank %d of %d: the sum is %g\n", (int)perseus_rank(), (int)perseus_size(),
         number);
  check(perseus_shutdown());
  return 0;
}
