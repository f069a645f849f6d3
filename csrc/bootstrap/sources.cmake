set(SOURCES ancestry.cc environment.cc launcher_sockets.cc launchers.cc listen_addresses.cc
    local_meeting.cc local_sockets.cc make_bootstrap.cc meeting_board.cc met_worlds.cc
    mpi_bootstrap.cc port_holder.cc rank_holder.cc rendezvous_bootstrap.cc rendezvous_connection.cc
    rendezvous_protocol.cc rendezvous_server.cc rendezvous_world.cc rendezvous_world_table.cc
    slurm.cc socket.cc spare_ports.cc)
set(NEEDS base observe mpi)
