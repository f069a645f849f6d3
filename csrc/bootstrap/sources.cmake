set(SOURCES environment.cc listen_addresses.cc local_secret.cc make_bootstrap.cc mpi_bootstrap.cc
    rank_holder.cc rendezvous_bootstrap.cc rendezvous_protocol.cc rendezvous_server.cc
    rendezvous_world.cc rendezvous_world_table.cc slurm.cc socket.cc)
set(NEEDS base observe mpi)
