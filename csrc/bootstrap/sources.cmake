set(SOURCES ancestry.cc environment.cc launchers.cc listen_addresses.cc local_sockets.cc local_meeting.cc make_bootstrap.cc
    meeting_board.cc mpi_bootstrap.cc port_holder.cc
    rank_holder.cc rendezvous_bootstrap.cc rendezvous_protocol.cc rendezvous_server.cc
    rendezvous_world.cc rendezvous_world_table.cc slurm.cc socket.cc)
set(NEEDS base observe mpi)
