/* MPI's own collectives, from the MPI that this is compiled against. */
#include <mpi.h>

#include "serve.h"

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

static const float* pingpong(float* input, float* output, size_t elements) {
  const int count = (int)elements;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int status = MPI_SUCCESS;
  if (rank == 0) status = MPI_Send(input, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
  if (status == MPI_SUCCESS) {
    status = MPI_Recv(output, count, MPI_FLOAT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  if (status == MPI_SUCCESS && rank == 1) {
    status = MPI_Send(output, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
  return checked(status, output);
}

/* MPI matches calls by their order only. */
static int name(const char* text) {
  (void)text;
  return 0;
}

enum { kMostRequests = 1024 };
static MPI_Request requests[kMostRequests];
static int under_way;

static int begin(int name, float* data, size_t elements, int priority) {
  (void)name, (void)priority;
  if (under_way == kMostRequests) return contender_failed("too many requests") != NULL;
  const int status = MPI_Iallreduce(MPI_IN_PLACE, data, (int)elements, MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD, &requests[under_way++]);
  return checked(status, data) != NULL;
}

static int end(void) {
  const int status = MPI_Waitall(under_way, requests, MPI_STATUSES_IGNORE);
  under_way = 0;
  return status == MPI_SUCCESS || contender_failed("MPI reports an error") != NULL;
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  contender_t contender = {.allreduce = allreduce,
                           .broadcast = broadcast,
                           .allgather = allgather,
                           .alltoall = alltoall,
                           .reducescatter = reducescatter,
                           .pingpong = pingpong,
                           .barrier = barrier,
                           .name = name,
                           .begin = begin,
                           .end = end};
  MPI_Comm_rank(MPI_COMM_WORLD, &contender.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &contender.size);
  size = contender.size;
  const int status = contender_serve(&contender);
  MPI_Finalize();
  return status;
}
