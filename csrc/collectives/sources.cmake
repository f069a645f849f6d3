set(SOURCES
  adasum.cc allgather.cc allreduce.cc allreduce_gathered.cc allreduce_direct.cc
  allreduce_hierarchical.cc allreduce_recursive_doubling.cc allreduce_ring.cc alltoall.cc
  broadcast.cc coded_allreduce.cc group.cc parts.cc reduce_scatter.cc
  running_collective.cc)
set(NEEDS base codec device transport)
