set(SOURCES environment.cc hmac.cc listen_addresses.cc local_secret.cc make_bootstrap.cc rank_names.cc
    rendezvous_bootstrap.cc rendezvous_protocol.cc rendezvous_server.cc rendezvous_world.cc
    secret.cc sha256.cc slurm.cc socket.cc mpi/mpi_abi.cc mpi/mpi_bootstrap.cc mpi/mpi_library.cc mpi/mpi_process.cc
    mpi/mpich.cc mpi/open_mpi.cc)
set(NEEDS base observe)
