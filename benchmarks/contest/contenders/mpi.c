/* MPI's own collectives, of whichever MPI this is compiled against. */
#include <mpi.h>

#include "contender.h"

static int size;

static const float* checked(int status, const float* result) {
  return status == MPI_SUCCESS ? result : contender_failed("MPI reports an error");
}

static const float* allreduce(float* input, float* output, size_t elements) {
  const void* from = output == NULL ? MPI_IN_PLACE : input;
  float* to = output == NULL ? input : output;
  return checked(MPI_Allreduce(from, to, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), to);
}

static const float* broadcast(float* input, float* output, size_t elements) {
  (void)output;
  return checked(MPI_Bcast(input, (int)elements, MPI_FLOAT, 0, MPI_COMM_WORLD), input);
}

static const float* allgather(float* input, float* output, size_t elements) {
  return checked(MPI_Allgather(input, (int)elements, MPI_FLOAT, output, (int)elements, MPI_FLOAT,
                               MPI_COMM_WORLD),
                 output);
}

static const float* alltoall(float* input, float* output, size_t elements) {
  const int part = (int)(elements / (size_t)size);
  return checked(MPI_Alltoall(input, part, MPI_FLOAT, output, part, MPI_FLOAT, MPI_COMM_WORLD),
                 output);
}

static const float* reducescatter(float* input, float* output, size_t elements) {
  const int part = (int)(elements / (size_t)size);
  return checked(MPI_Reduce_scatter_block(input, output, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                 output);
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  contender_t contender = {.allreduce = allreduce,
                           .broadcast = broadcast,
                           .allgather = allgather,
                           .alltoall = alltoall,
                           .reducescatter = reducescatter,
                           .barrier = barrier};
  MPI_Comm_rank(MPI_COMM_WORLD, &contender.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &contender.size);
  size = contender.size;
  const int status = contender_serve(&contender);
  MPI_Finalize();
  return status;
}
